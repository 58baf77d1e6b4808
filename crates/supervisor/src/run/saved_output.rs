//! Output that a run's shim has saved while no server was there to read it: appended to the run's journal, behind the
//! existing output.

use crate::base::clock;
use kennel_journal::{Kind, Writer};
use kennel_keeper::saved_output;
use std::{io, os::unix::fs::FileExt, path::Path};

/// Bytes copied at once.
const COPY_BYTES: usize = 64 * 1024;

/// Copies the output. When a server dies in between, the next one continues where the journal ends.
pub(crate) fn take(writer: &mut Writer, run_dir: &Path) -> io::Result<()> {
    for (stream, kind) in [Kind::Stdout, Kind::Stderr].into_iter().enumerate() {
        let len = writer.len(kind);
        let Some((file, begins)) = saved_output::claim(run_dir, stream, len)? else {
            continue;
        };
        // No consumer can make space for output that exists already.
        writer.go_beyond_bound(true);
        let mut at = len.saturating_sub(begins);
        let mut buffer = vec![0; COPY_BYTES];
        while at < saved_output::SAVED_BYTES_MAX {
            let read = file.read_at(&mut buffer, at)?;
            if read == 0 {
                break;
            }
            let now = clock::now();
            let place = writer.place(kind, now)?;
            let part = &buffer[..read.min(place.room)];
            place.file.write_all_at(part, place.offset)?;
            let bytes = part.len() as u64;
            writer.output_written(kind, bytes, now)?;
            at += bytes;
        }
        saved_output::remove(run_dir, stream)?;
    }
    Ok(())
}
