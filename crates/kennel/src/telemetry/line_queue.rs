//! Standard error of the server: a queue of lines, and the thread that writes them. A reader that stands still or is
//! gone, or a full disk, costs lines, which are counted; no other thread waits for it.

use super::losses::Losses;
use std::{
    io::{self, ErrorKind, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, Sender, SyncSender},
    },
    thread,
    time::Duration,
};

/// Most lines that wait.
const WAITING_MAX: usize = 1024;
/// Longest wait of a process for its last lines.
const LAST_LINES_MAX: Duration = Duration::from_millis(250);
/// Pause between two writes to a descriptor that is non-blocking, and full.
const AGAIN_AFTER: Duration = Duration::from_millis(20);

#[derive(Debug)]
enum Queued {
    Line(Vec<u8>),
    /// Answered when all lines before it are written.
    Flush(Sender<()>),
}

/// The queue.
#[derive(Debug)]
pub(super) struct LineQueue {
    queue: SyncSender<Queued>,
    dropped: AtomicU64,
    pub(super) losses: Losses,
}

impl LineQueue {
    /// Starts the thread, which lives as long as the process.
    pub(super) fn start(to: impl Write + Send + 'static) -> io::Result<Arc<Self>> {
        let (queue, queued) = mpsc::sync_channel(WAITING_MAX);
        let (dropped, losses) = (AtomicU64::new(0), Losses::default());
        let lines = Arc::new(Self {
            queue,
            dropped,
            losses,
        });
        let source = Arc::clone(&lines);
        let thread = thread::Builder::new().name("log".to_owned());
        thread.spawn(move || source.write_for_ever(&queued, to))?;
        Ok(lines)
    }

    /// Waits until all lines are written, for a bounded time.
    pub(super) fn finish(&self) {
        let (written, is_written) = mpsc::channel();
        // A full queue, or one that is not written in time, has no reader.
        if self.queue.try_send(Queued::Flush(written)).is_ok() {
            let _ = is_written.recv_timeout(LAST_LINES_MAX);
        }
    }

    fn write_for_ever(&self, queued: &Receiver<Queued>, mut to: impl Write) {
        let mut reported = 0;
        // Whether the last line was written in part, as on a full disk: the next line begins with a line feed.
        let mut is_torn = false;
        while let Ok(queued) = queued.recv() {
            match queued {
                Queued::Line(line) if is_taken(&mut to, &line, &mut is_torn) => {
                    let lines = self.dropped.load(Ordering::Relaxed);
                    if lines > reported {
                        reported = lines;
                        tracing::warn!(
                            lines,
                            "lines of the log were dropped in all: standard error did not take them"
                        );
                    }
                }
                Queued::Line(_) => self.drop_line("not_taken"),
                Queued::Flush(written) => drop(written.send(())),
            }
        }
    }

    fn drop_line(&self, reason: &'static str) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        self.losses.lost("stderr", reason, 1);
    }
}

impl Write for &LineQueue {
    /// Queues one line, or drops it where the queue is full.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.queue.try_send(Queued::Line(line.to_owned())).is_err() {
            self.drop_line("queue_full");
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a line, after the end of a torn one. Returns whether all of it was taken.
fn is_taken(to: &mut impl Write, line: &[u8], is_torn: &mut bool) -> bool {
    if *is_torn && !write_all(to, b"\n", is_torn) {
        return false;
    }
    *is_torn = false;
    write_all(to, line, is_torn)
}

fn write_all(to: &mut impl Write, mut line: &[u8], is_torn: &mut bool) -> bool {
    while !line.is_empty() {
        match to.write(line) {
            Ok(written) if written > 0 => {
                line = &line[written..];
                *is_torn = !line.is_empty();
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // Another process that shares the descriptor has made it non-blocking.
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(AGAIN_AFTER),
            Ok(_) | Err(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};

    impl LineQueue {
        /// Waits until nothing is queued nor being written; returns the number of dropped lines.
        fn settled(&self) -> u64 {
            let (written, is_written) = mpsc::channel();
            self.queue
                .send(Queued::Flush(written))
                .expect("the thread lives");
            is_written.recv().expect("it is answered");
            self.dropped.load(Ordering::Relaxed)
        }
    }

    fn push(mut queue: &LineQueue, number: usize) {
        let line = format!("{number:0199}\n");
        queue.write_all(line.as_bytes()).expect("it is queued");
    }

    // promise: M-31
    #[test]
    fn full_pipe_drops_lines_and_blocks_no_writer() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let queue = LineQueue::start(writer).expect("a thread");
        let mut pushed = 0;
        while queue.dropped.load(Ordering::Relaxed) < 3 {
            push(&queue, pushed);
            pushed += 1;
        }
        // The reader is stuck: `finish` does not wait for it.
        queue.finish();

        let mut lines = BufReader::new(reader).lines();
        let mut next = || lines.next().expect("a line").expect("it is read");
        let numbers: Vec<usize> = (3..pushed)
            .map(|_| next().parse().expect("a number"))
            .collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
        assert_eq!(queue.settled(), 3);
        push(&queue, 7);
        assert_eq!(next().parse(), Ok(7));
    }

    /// Takes so many bytes, then none.
    struct Disk(Vec<u8>, usize);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.1);
            if taken == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            self.1 -= taken;
            self.0.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    // promise: M-31a
    #[test]
    fn torn_log_line_ends_before_the_next() {
        let (mut disk, mut is_torn) = (Disk(Vec::new(), 7), false);
        let mut write = |disk: &mut Disk, line: &[u8]| is_taken(disk, line, &mut is_torn);
        assert!(write(&mut disk, b"one\n"));
        assert!(!write(&mut disk, b"second\n"));
        assert!(!write(&mut disk, b"third\n"));
        disk.1 = 1;
        assert!(!write(&mut disk, b"fourth\n"));
        disk.1 = 100;
        assert!(write(&mut disk, b"five\n"));
        assert!(write(&mut disk, b"six\n"));
        assert_eq!(disk.0, b"one\nsec\nfive\nsix\n");
    }

    // promise: M-31a
    #[test]
    fn lines_without_reader_are_counted_as_dropped() {
        let (reader, writer) = io::pipe().expect("a pipe");
        drop(reader);
        let queue = LineQueue::start(writer).expect("a thread");
        push(&queue, 1);
        push(&queue, 2);
        assert_eq!(queue.settled(), 2);
        push(&queue, 3);
        assert_eq!(queue.settled(), 3);
    }
}
