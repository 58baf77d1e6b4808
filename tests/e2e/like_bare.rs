//! `kennel run` beside the bare command: in each situation of standard streams, signals and terminals the same code or
//! death, and the same bytes.

use kennel_journal::Screen;
use kennel_lifecycle::TerminalSize;
use kennel_tests::{Kennel, PATIENCE, eventually, programs};
use nix::{
    fcntl::{FcntlArg, FdFlag, fcntl},
    pty::{Winsize, openpty},
    sys::{
        signal::{
            Signal::{self, SIGHUP, SIGINT, SIGQUIT, SIGTERM},
            kill, killpg,
        },
        termios::{InputFlags, SetArg, tcgetattr, tcsetattr},
    },
    unistd::Pid,
};
use std::{
    fmt::Write as _,
    fs::{self, File},
    io::{Read, Write as _},
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
};
use tokio::sync::Semaphore;

/// What is done to a situation once it shows a mark.
enum Step {
    /// A signal to the command, as of kill(1).
    Kill(Signal),
    /// A signal to the shell's group, as of a key.
    Group(Signal),
    /// Keys typed on the terminal.
    Type(&'static str),
}
use Step::{Group, Kill, Type};

/// A line of bash, and the steps after their marks. `$RUN` stands before the command: it is empty, or `kennel run --`;
/// `$TTY` likewise, with a terminal of its own.
type Row = (&'static str, &'static [(&'static str, Step)]);

/// Rows without a terminal.
const PIPES: &[Row] = &[
    // Rows for exit codes.
    ("exec $RUN true", &[]),
    ("exec $RUN false", &[]),
    ("exec $RUN sh -c 'exit 255'", &[]),
    ("exec $RUN sh -c 'exit 130'", &[]),
    ("exec $RUN sh -c 'kill -INT $$'", &[]),
    ("exec $RUN sh -c 'kill -TERM $$'", &[]),
    ("exec $RUN sh -c 'kill -KILL $$'", &[]),
    ("exec $RUN sh -c 'kill -HUP $$'", &[]),
    ("exec $RUN sh -c 'kill -PIPE $$'", &[]),
    ("exec $RUN sh -c 'kill -USR1 $$'", &[]),
    ("exec $RUN sh -c 'ulimit -c 0; kill -SEGV $$'", &[]),
    ("exec $RUN sh -c 'ulimit -c 0; kill -ABRT $$'", &[]),
    ("exec $RUN bash -c 'kill -40 $$'", &[]),
    ("$RUN ./missing 2>/dev/null; echo $?", &[]),
    (": > plain; $RUN ./plain 2>/dev/null; echo $?", &[]),
    ("set -e; $RUN false; echo no", &[]),
    ("$RUN false || $RUN true && echo yes", &[]),
    ("set -o pipefail; $RUN sh -c 'exit 3' | cat; echo $?", &[]),
    ("$RUN sh -c 'exit 5' & wait $!; echo $?", &[]),
    ("x=$($RUN echo hi; exit 4); echo $? [$x]", &[]),
    (
        "printf 'a:\\n\\t@$$RUN sh -c \"exit 3\"\\n' > Makefile; make -s 2>&1",
        &[],
    ),
    // Rows for stdin.
    ("echo x | $RUN cat", &[]),
    ("$RUN cat < $BIG | cksum", &[]),
    ("cat $BIG | $RUN cksum", &[]),
    ("$RUN cat < /dev/null; echo $?", &[]),
    ("$RUN true < /; echo $?", &[]),
    ("$RUN true 0> f; echo $?", &[]),
    ("$RUN true <&-; echo $?", &[]),
    ("yes | $RUN head -n 2; echo ${PIPESTATUS[@]}", &[]),
    (
        "yes | $RUN sh -c 'exec <&-; echo done; exit 6'; echo $?",
        &[],
    ),
    ("echo a b | xargs -n 1 $RUN echo", &[]),
    (
        "while read -r x; do $RUN echo $x < /dev/null; done <<< $'1\\n2'",
        &[],
    ),
    (
        "until_up | { nonblock 0; $RUN sh -c 'echo up; exec '\"$COPY\" > out; echo $?; cat out; }",
        &[],
    ),
    (
        "mkfifo f; sleep 300 > f 2>/dev/null & { nonblock 0; exec $RUN sh -c 'echo up; exec sleep 300'; } < f",
        &[("up", Kill(SIGTERM))],
    ),
    (": | { nonblock 0; $RUN $COPY; echo $?; }", &[]),
    // Rows for stdout and stderr.
    ("$RUN sh -c 'echo o; echo e >&2; exit 2'", &[]),
    ("$RUN printf 'no newline'", &[]),
    ("$RUN printf 'a\\0b\\377\\n'", &[]),
    ("$RUN cat $BIG | cksum", &[]),
    ("$RUN cat $BIG > f; cksum < f", &[]),
    (
        "$RUN sh -c 'cat \"$1\" >&2' sh $BIG 2>&1 >/dev/null | cksum",
        &[],
    ),
    ("echo a > f; $RUN echo b >> f; cat f", &[]),
    ("$RUN sh -c 'echo o; echo e >&2' > f 2>&1; sort f", &[]),
    ("$RUN true >&-; echo $?", &[]),
    ("$RUN sh -c 'echo e >&2' >&-", &[]),
    ("$RUN sh -c 'echo o; exit 3' 2>&-; echo $?", &[]),
    (
        "$RUN yes 2>/dev/null | head -n 1; echo ${PIPESTATUS[@]}",
        &[],
    ),
    ("exec 3>&1; { exec $RUN yes; } > >(head -n 1 >&3)", &[]),
    (
        "{ nonblock 1; $RUN $COPY < $BIG; echo $? >&2; } | cksum",
        &[],
    ),
    (
        "{ nonblock 2; $RUN sh -c '\"$@\" >&2' sh $COPY < $BIG; } 2>&1 | cksum",
        &[],
    ),
    // Signal rows.
    (
        "exec $RUN sh -c 'echo up; exec sleep 300'",
        &[("up", Kill(SIGINT))],
    ),
    (
        "exec $RUN sh -c 'echo up; exec sleep 300'",
        &[("up", Kill(SIGTERM))],
    ),
    (
        "exec $RUN sh -c 'echo up; exec sleep 300'",
        &[("up", Kill(SIGHUP))],
    ),
    (
        "ulimit -c 0; exec $RUN sh -c 'echo up; exec sleep 300'",
        &[("up", Kill(SIGQUIT))],
    ),
    (
        "exec $RUN sh -c 'trap \"echo int; exit 7\" INT; echo up; while :; do sleep 0.02; done'",
        &[("up", Kill(SIGINT))],
    ),
    (
        "exec $RUN sh -c 'trap \"echo term; exit 9\" TERM; exec 2>/dev/null; echo up; while :; do sleep 0.02; done'",
        &[("up", Kill(SIGTERM))],
    ),
    (
        "exec $RUN sh -c 'trap \"echo again\" INT; echo up; while :; do sleep 0.02; done'",
        &[("up", Kill(SIGINT)), ("again", Kill(SIGTERM))],
    ),
    (
        "trap '' HUP; exec $RUN sh -c 'trap \"exit 6\" TERM; exec 2>/dev/null; echo up; while :; do sleep 0.02; done'",
        &[("up", Kill(SIGHUP)), ("up", Kill(SIGTERM))],
    ),
    (
        "for i in 1 2 3; do $RUN sh -c 'echo up; exec sleep 300'; echo after; done",
        &[("up", Group(SIGINT))],
    ),
    (
        "$RUN sh -c 'echo up; exec sleep 300'; echo after",
        &[("up", Group(SIGINT))],
    ),
    (
        "$RUN sh -c 'echo up; exec sleep 300' | cat; echo after",
        &[("up", Group(SIGINT))],
    ),
    ("timeout 0.5 $RUN sleep 300; echo $?", &[]),
    ("timeout -s INT 0.5 $RUN sleep 300; echo $?", &[]),
    ("timeout --preserve-status 0.5 $RUN sleep 300; echo $?", &[]),
    ("env A=1 nice -n 1 $RUN printenv A", &[]),
];

/// Rows on a terminal.
const TERMINALS: &[Row] = &[
    (
        "$RUN sh -c 'echo up; cat; echo end'",
        &[("up", Type("hi\n\x04"))],
    ),
    (
        "$RUN sh -c 'echo up; exec sleep 300'; echo after",
        &[("up", Type("\x03"))],
    ),
    (
        "ulimit -c 0; exec $RUN sh -c 'echo up; exec sleep 300'",
        &[("up", Type("\x1c"))],
    ),
    ("exec $TTY sh -c 'exit 7'", &[]),
    ("exec $TTY sh -c 'kill -TERM $$'", &[]),
    (
        "exec $TTY sh -c 'echo up; exec sleep 300'",
        &[("up", Type("\x03"))],
    ),
    (
        "$TTY sh -c 'test -t 0 && test -t 1 && test -t 2'; echo $?",
        &[],
    ),
    ("$TTY stty size; echo $?", &[]),
    ("$TTY printf 'a\\tb\\n'", &[]),
    (
        "$TTY sh -c 'echo up; cat; echo end'",
        &[("up", Type("hi\n\x04"))],
    ),
    (
        "$TTY sh -c 'echo up; read -r x; printf %s \"$x\" | od -An -tx1'",
        &[("up", Type("a\u{e9}\x7f\n"))],
    ),
    (
        "$TTY sh -c 'stty raw -echo; echo up; dd bs=1 count=1 2>/dev/null | od -An -tx1; stty sane'",
        &[("up", Type("\x10"))],
    ),
    ("$TTY true; stty -a | grep -o -e -icanon -e ' icanon'", &[]),
];

/// Functions and variables of all rows.
const PRELUDE: &str = "
nonblock() { /usr/bin/python3 -c 'import fcntl, os, sys
n = int(sys.argv[1])
os.set_blocking(n, False)
try: fcntl.fcntl(n, 1031, 4096)
except OSError: pass' $1; }
until_up() { until grep -qs up out; do sleep 0.01; done; echo late; }
";

/// Copies, and waits for streams that are not ready.
const COPY: &str = "
import os, select
def patient(call, *args):
    while True:
        try: return call(*args)
        except BlockingIOError: select.select([], [1], []) if call is os.write else select.select([0], [], [])
while data := patient(os.read, 0, 65536):
    while data: data = data[patient(os.write, 1, data):]
";

const SIZE: TerminalSize = TerminalSize { rows: 24, cols: 80 };

/// Situations at a time.
const AT_ONCE: usize = 6;

/// A situation with `kennel run`, or with the bare command.
struct Situation {
    row: &'static Row,
    on_terminal: bool,
    /// Address of the server; absent: the bare command.
    server: Option<String>,
    /// The directory in which it takes place.
    dir: PathBuf,
    /// The directory of the files of all.
    files: PathBuf,
}

// promise: P-11a, P-14, C-1, C-39
#[tokio::test(flavor = "multi_thread")]
async fn run_command_behaves_like_the_bare_command() {
    let kennel = Kennel::on_sqlite().await;
    let files = kennel.scratch().to_owned();
    let big: Vec<u8> = (0..1 << 18).flat_map(u32::to_le_bytes).collect();
    fs::write(files.join("big"), big).expect("own directory");
    fs::write(files.join("copy"), COPY).expect("own directory");
    let rows = PIPES.iter().map(|row| (row, false));
    let rows = rows.chain(TERMINALS.iter().map(|row| (row, true)));
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let compared = rows.enumerate().map(|(number, (row, on_terminal))| {
        let [bare, ours] = [None, Some(kennel.address())].map(|server| Situation {
            row,
            on_terminal,
            dir: files.join(format!("{number}-{}", server.is_some())),
            server,
            files: files.clone(),
        });
        let places = Arc::clone(&places);
        tokio::spawn(async move {
            let _place = places.acquire().await.expect("it is not closed");
            let (bare, ours) = tokio::join!(bare.play(), ours.play());
            (bare != ours).then(|| format!("{}\n  bare: {bare}\n  ours: {ours}\n", row.0))
        })
    });
    let compared: Vec<_> = compared.collect();
    let mut differ = String::new();
    for row in compared {
        differ.extend(row.await.expect("no panic"));
    }
    assert!(differ.is_empty(), "{differ}");
}

impl Situation {
    /// Returns how it ends, and what is written.
    async fn play(self) -> String {
        let (line, steps) = self.row;
        fs::create_dir(&self.dir).expect("own directory");
        let mut command = self.command(line);
        let mut outputs: Vec<Output> = Vec::new();
        let mut keys = None;
        if self.on_terminal {
            let (master, slave) = terminal();
            let slave = || slave.try_clone().expect("room");
            command.stdin(slave()).stdout(slave()).stderr(slave());
            keys = Some(master.try_clone().expect("room"));
            outputs.push(Output::of(master));
        } else {
            command
                .process_group(0)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
        }
        let mut shell = EndOnDrop(command.spawn().expect("bash is here"));
        // Close the terminal's descriptors here: output ends when the last one is closed.
        drop(command);
        outputs.extend(shell.0.stdout.take().map(Output::of));
        outputs.extend(shell.0.stderr.take().map(Output::of));
        for (mark, step) in *steps {
            eventually(&format!("{mark:?} of {line}"), PATIENCE, || {
                outputs[0].text().contains(mark).then_some(())
            })
            .await;
            let pid = Pid::from_raw(shell.0.id().cast_signed());
            match step {
                Kill(signal) => kill(pid, *signal).expect("own child"),
                Group(signal) => killpg(pid, *signal).expect("own group"),
                Type(typed) => {
                    let keys = keys.as_mut().expect("a terminal");
                    keys.write_all(typed.as_bytes()).expect("it takes keys");
                }
            }
        }
        let status = eventually(&format!("the end of {line}"), PATIENCE, || {
            shell.0.try_wait().expect("own child")
        })
        .await;
        let mut end = match status.signal() {
            Some(signal) => format!("signal {signal}"),
            None => format!("code {:?}", status.code()),
        };
        let draws = line.contains("$TTY");
        for output in outputs {
            let _ = write!(end, ", {:?}", output.whole(draws).await);
        }
        end
    }

    fn command(&self, line: &str) -> Command {
        let binary = programs::kennel().display().to_string();
        let [run, tty] = match self.server {
            Some(_) => [format!("{binary} run --"), format!("{binary} run --tty --")],
            None => [String::new(), String::new()],
        };
        let mut command = Command::new(if self.on_terminal { "setsid" } else { "bash" });
        if self.on_terminal {
            // `-c`: standard input becomes the controlling terminal.
            command.args(["-c", "bash"]);
        }
        let copy = format!("/usr/bin/python3 {}", self.files.join("copy").display());
        command
            .args(["-c", &format!("{PRELUDE}{line}")])
            .current_dir(&self.dir)
            .env("RUN", run)
            .env("TTY", tty)
            .env("COPY", copy)
            .env("BIG", self.files.join("big"))
            .env("TERM", "xterm-256color")
            .env("KENNEL_SERVER", self.server.as_deref().unwrap_or_default());
        command
    }
}

/// Returns both ends of a terminal as a person has it.
fn terminal() -> (File, File) {
    let size = Winsize {
        ws_row: SIZE.rows,
        ws_col: SIZE.cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let ends = openpty(&size, None).expect("a terminal");
    let mut settings = tcgetattr(&ends.slave).expect("it says");
    settings.input_flags.insert(InputFlags::IUTF8);
    tcsetattr(&ends.slave, SetArg::TCSANOW, &settings).expect("it can be");
    for end in [&ends.master, &ends.slave] {
        fcntl(end, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).expect("own descriptor");
    }
    (ends.master.into(), ends.slave.into())
}

/// What a stream shows, read by a thread.
struct Output {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: thread::JoinHandle<()>,
}

impl Output {
    fn of(mut stream: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let read = Arc::clone(&bytes);
        let reader = thread::spawn(move || {
            let mut buffer = [0; 4096];
            // Reads of an unused terminal fail.
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                let mut bytes = read.lock().expect("no panic");
                bytes.extend_from_slice(&buffer[..count]);
            }
        });
        Self { bytes, reader }
    }

    fn text(&self) -> String {
        let bytes = self.bytes.lock().expect("no panic");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns all of it once the stream has ended; `draws`: as a terminal shows it.
    async fn whole(self, draws: bool) -> String {
        eventually("the end of the output", PATIENCE, || {
            self.reader.is_finished().then_some(())
        })
        .await;
        let bytes = self.bytes.lock().expect("no panic");
        if !draws {
            return bytes.escape_ascii().to_string();
        }
        let mut screen = Screen::new(SIZE);
        screen.feed(&bytes);
        let picture = screen.picture();
        let lines = picture.lines.iter();
        let lines = lines.map(|line| line.spans.iter().map(|span| &*span.text).collect());
        let lines: Vec<String> = lines.collect();
        format!(
            "{} cursor {:?}",
            lines.join("\n").trim_end(),
            picture.cursor
        )
    }
}

/// A shell that does not outlive its situation.
struct EndOnDrop(Child);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        // The shell's group includes its background jobs.
        let _ = killpg(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGKILL);
        let _ = self.0.wait();
    }
}
