//! Logs, frames and the results of a replay.

use kennel_journal::{
    Boot,
    node_log::{
        Disk, Frame, LogPosition, LogSizes, NodeLog, Origin, OwnedFrame, PayloadFormat, Replayed,
        SegmentId,
    },
};
use kennel_lifecycle::Timestamp;
use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};
use tempfile::TempDir;

/// Sizes so small that a test fills several segments.
pub(crate) const SMALL: LogSizes = LogSizes {
    segment: 256 * 1024,
    step: 64 * 1024 * 2,
    copy_above: 0,
};

pub(crate) fn origin(server: u64) -> Origin {
    Origin {
        format: PayloadFormat {
            number: 3,
            hash: *b"hashhash",
        },
        epoch: 11,
        server,
        boot: Boot(13),
    }
}

/// A directory for a log, and the log's path in it.
pub(crate) fn new_dir() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    (dir, log)
}

pub(crate) fn open(dir: &Path) -> NodeLog {
    NodeLog::open(dir, origin(1)).unwrap()
}

pub(crate) fn open_small(dir: &Path) -> NodeLog {
    NodeLog::open_on(Arc::new(TestDisk::default()), dir, origin(1), SMALL).unwrap()
}

/// Returns a frame whose payload of this length differs from that of all other seqs.
pub(crate) fn owned(run: u128, seq: u64, len: usize) -> OwnedFrame {
    let mut state = seq.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::try_from(run).unwrap();
    let mut payload = Vec::with_capacity(len + 8);
    while payload.len() < len {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        // Low bits alone repeat soon: mix in high bits.
        payload.extend_from_slice(&(state ^ (state >> 32)).to_le_bytes());
    }
    payload.truncate(len);
    OwnedFrame {
        kind: 7,
        run,
        incarnation: 1,
        seq,
        attempt: 2,
        at: Timestamp(1_000_000 + i64::try_from(seq).unwrap()),
        lens: [seq * 3, seq * 5],
        payload,
    }
}

pub(crate) fn append(log: &NodeLog, frames: &[OwnedFrame]) -> io::Result<LogPosition> {
    let frames: Vec<Frame<'_>> = frames.iter().map(OwnedFrame::frame).collect();
    log.append(&frames).map(|appended| appended.end)
}

/// Returns the replay of a new server.
pub(crate) fn replay(dir: &Path) -> (Vec<OwnedFrame>, Replayed) {
    replay_by(&open(dir))
}

/// Returns the replay of this server, which may do it again after a change of the earlier segments.
pub(crate) fn replay_by(log: &NodeLog) -> (Vec<OwnedFrame>, Replayed) {
    let mut frames = Vec::new();
    let replayed = log.replay(|found| {
        frames.push(found.frame.into());
    });
    (frames, replayed.unwrap())
}

pub(crate) fn segment(generation: u64, number: u32, dir: &Path) -> PathBuf {
    SegmentId { generation, number }.path(dir)
}

/// Returns the names of all files, in order.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Removes the files of a replay's own server, so that the next replay finds the same.
pub(crate) fn remove_newer(dir: &Path, generation: u64) {
    for name in names(dir) {
        if name.as_str() > format!("{generation:016x}-ffffffff.log").as_str() {
            std::fs::remove_file(dir.join(name)).unwrap();
        }
    }
}

/// A disk that counts, and fails on request.
#[derive(Debug, Default)]
pub(crate) struct TestDisk {
    pub(crate) writes: AtomicUsize,
    pub(crate) syncs: AtomicUsize,
    pub(crate) dir_syncs: AtomicUsize,
    pub(crate) is_failing_syncs: AtomicBool,
    /// Whether writes beyond the file's end fail, as on a full disk.
    pub(crate) is_full: AtomicBool,
    /// Whether all writes stop half way, those of zeros too.
    pub(crate) is_broken: AtomicBool,
    /// Whether syncs take a while, so that other calls arrive meanwhile.
    pub(crate) is_slow: AtomicBool,
}

impl Disk for TestDisk {
    fn write(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        self.writes.fetch_add(1, Ordering::SeqCst);
        let is_beyond = offset + bytes.len() as u64 > file.metadata()?.len();
        if self.is_full.load(Ordering::SeqCst) && is_beyond {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if self.is_broken.load(Ordering::SeqCst) {
            file.write_all_at(&bytes[..bytes.len() / 2], offset)?;
            return Err(io::Error::other("broken"));
        }
        file.write_all_at(bytes, offset)
    }

    fn sync(&self, _: &File) -> io::Result<()> {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        if self.is_slow.load(Ordering::SeqCst) {
            std::thread::yield_now();
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        if self.is_failing_syncs.load(Ordering::SeqCst) {
            return Err(io::Error::other("the disk is gone"));
        }
        Ok(())
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        self.dir_syncs.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}
