//! A command and its working directory: in requests, and in output.

use crate::{failure::Failure, terminal_text, values};
use kennel_proto::pb::{self, run_spec::Command};
use std::{ffi::OsString, os::unix::ffi::OsStringExt, path::Path};

/// Returns the command for a request; as bytes only where it is not UTF-8.
pub(crate) fn argv(words: Vec<OsString>) -> pb::Argv {
    if words.iter().all(|word| word.to_str().is_some()) {
        let texts = words.into_iter().filter_map(|word| word.into_string().ok());
        return pb::Argv {
            args: texts.collect(),
            raw_args: Vec::new(),
        };
    }
    let bytes = words.into_iter().map(|word| word.into_vec().into());
    pb::Argv {
        args: Vec::new(),
        raw_args: bytes.collect(),
    }
}

/// Returns the working directory for a request, as text or as bytes. It is absolute: the server does not know this
/// process's.
pub(crate) fn directory(cwd: Option<&Path>) -> Result<(Option<String>, Option<Vec<u8>>), Failure> {
    let path = match cwd {
        Some(dir) => std::path::absolute(dir),
        None => std::env::current_dir(),
    };
    let path = path.map_err(|cause| {
        Failure::new(format!("there is no working directory: {cause}"))
            .hint("name one with --cwd DIR")
    })?;
    Ok(match path.into_os_string().into_string() {
        Ok(text) => (Some(text), None),
        Err(path) => (None, Some(path.into_vec())),
    })
}

/// Formats the command of a run as it would be typed into a shell.
pub(crate) fn line(run: &pb::Run) -> Option<String> {
    let Command::Argv(argv) = run.spec.as_ref()?.command.as_ref()?;
    Some(if argv.raw_args.is_empty() {
        values::command_line(&argv.args)
    } else {
        values::command_line(&argv.raw_args)
    })
}

/// Formats the command for a table.
pub(crate) fn or_dash(run: &pb::Run) -> String {
    line(run).unwrap_or_else(|| "-".to_owned())
}

/// Returns the pid of a run's command while it has not ended: later the number may be another process's.
pub(crate) fn live_pid(run: &pb::Run) -> Option<i32> {
    let attempt = run.current_attempt.as_ref()?;
    let has_ended = attempt.exit.is_some()
        || attempt.leader_exited_time.is_some()
        || attempt.end_time.is_some();
    (attempt.pid > 0 && !has_ended).then_some(attempt.pid)
}

/// Formats the working directory of a run, safe for a terminal.
pub(crate) fn shown_directory(run: &pb::Run) -> Option<String> {
    let spec = run.spec.as_ref()?;
    let shown = |text: Option<&str>, raw: Option<&[u8]>| {
        let text = text.map(terminal_text::one_line);
        text.or_else(|| raw.map(terminal_text::bytes))
    };
    shown(spec.cwd.as_deref(), spec.raw_cwd.as_deref()).or_else(|| {
        let own = spec.inherited.as_ref()?;
        shown(own.cwd.as_deref(), own.raw_cwd.as_deref())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: C-38
    #[test]
    fn utf8_arguments_are_sent_as_text() {
        let text = argv(vec!["ls".into(), "ä".into()]);
        assert_eq!((text.args.len(), text.raw_args.len()), (2, 0));
        let raw = argv(vec!["ls".into(), OsString::from_vec(vec![0xff])]);
        assert_eq!(raw.args, [""; 0]);
        assert_eq!(raw.raw_args, [&b"ls"[..], b"\xff"]);
    }

    #[test]
    fn non_utf8_arguments_are_printed_escaped() {
        let dir = OsString::from_vec(b"/\x1b\xff".to_vec());
        let (cwd, raw_cwd) = directory(Some(Path::new(&dir))).unwrap_or_else(|f| panic!("{f}"));
        assert_eq!(cwd, None);
        let run = pb::Run {
            spec: Some(pb::RunSpec {
                raw_cwd: raw_cwd.map(Into::into),
                command: Some(Command::Argv(argv(vec![
                    "ls".into(),
                    OsString::from_vec(b"it's \xff\x1b".to_vec()),
                ]))),
                ..pb::RunSpec::default()
            }),
            ..pb::Run::default()
        };
        assert_eq!(line(&run).as_deref(), Some(r"ls $'it\'s \xff\u001b'"));
        assert_eq!(shown_directory(&run).as_deref(), Some(r"/\u{1b}\xff"));
        let mut spec = run.spec.expect("set above");
        spec.inherited = Some(pb::Inherited {
            raw_cwd: spec.raw_cwd.take(),
            ..pb::Inherited::default()
        });
        let of_client = pb::Run {
            spec: Some(spec),
            ..pb::Run::default()
        };
        assert_eq!(shown_directory(&of_client).as_deref(), Some(r"/\u{1b}\xff"));
    }
}
