//! Causes of failed file writes: the journal's errors name the file, and have the kernel's error as their cause.

use std::{error::Error, fmt, io};

/// An error with its causes, for one line of the log.
pub(crate) struct Chain<'a>(pub(crate) &'a dyn Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(inner) = cause {
            write!(f, ": {inner}")?;
            cause = inner.source();
        }
        Ok(())
    }
}

/// Returns the errno(3) of the error, or of the nearest of its causes that has one.
pub(crate) fn errno(error: &io::Error) -> Option<i32> {
    let own = error.raw_os_error();
    let mut cause = error.source();
    let mut found = own;
    while let (None, Some(inner)) = (found, cause) {
        found = inner
            .downcast_ref::<io::Error>()
            .and_then(io::Error::raw_os_error);
        cause = inner.source();
    }
    found
}

/// Whether a file could not be written because of a full disk, a quota, or a limit on the size of files.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_journal::Boot;
    use kennel_lifecycle::{OutputBound, Timestamp};

    #[test]
    fn full_disk_is_detected_in_wrapped_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let error = kennel_journal::Writer::create(
            &dir.path().join("missing"),
            OutputBound::default(),
            Boot::UNKNOWN,
            Timestamp(0),
        )
        .expect_err("no file can be made there");
        assert_eq!(error.raw_os_error(), None, "the journal names the file");
        // 2 is ENOENT; ENOSPC works likewise.
        assert_eq!(errno(&error), Some(2));
        let text = Chain(&error).to_string();
        assert!(
            text.contains("missing") && text.contains("os error 2"),
            "{text}"
        );
        assert_eq!(errno(&io::Error::from_raw_os_error(28)), Some(28));
        assert_eq!(errno(&io::Error::other("no number")), None);
    }
}
