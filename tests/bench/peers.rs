//! The same tree ended by other tools: the kernel's own kill of a control group, a loop of killpg, and supervisord.

use crate::tree::{Found, TREE_LEN, TREES, TRICK, grown};
use kennel_tests::{
    Footprint, PATIENCE, eventually,
    kennel::{kill_exactly, reap_orphans},
    must, procfs, programs,
};
use nix::{
    errno::Errno,
    sys::{
        prctl,
        signal::{Signal, killpg},
        wait::waitpid,
    },
    unistd::Pid,
};
use std::{
    fs,
    io::{Read, Write},
    os::unix::{net::UnixStream, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Instant,
};
use tempfile::TempDir;

/// Bytes of supervisord's answer that are read.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// Measures cgroup.kill, until the group has no living member.
pub(crate) async fn cgroup_kill() -> Result<Found, String> {
    let group = Group::new()?;
    let mut found = Found::default();
    for _ in 0..TREES {
        let enter = format!(
            "echo $$ > '{}/cgroup.procs' && exec \"$0\" \"$@\"",
            group.0.display()
        );
        let mut words = vec!["/bin/sh".to_owned(), "-c".to_owned(), enter];
        words.extend(trick());
        let mut leader = start(&words);
        let print = learn(&leader).await;
        let began = Instant::now();
        must("kill", fs::write(group.0.join("cgroup.kill"), "1"));
        while group.is_populated() {
            std::hint::spin_loop();
        }
        found.took.push(began.elapsed());
        let _ = leader.wait();
        count_and_end(&print, &mut found).await;
    }
    Ok(found)
}

/// Measures SIGKILL to the group, until no process of it is left to wait for.
pub(crate) async fn killpg_loop() -> Found {
    let mut found = Found::default();
    for _ in 0..TREES {
        let mut leader = start(&trick());
        let print = learn(&leader).await;
        let group = Pid::from_raw(number(&leader));
        let began = Instant::now();
        loop {
            let _ = killpg(group, Signal::SIGKILL);
            if waitpid(Pid::from_raw(-group.as_raw()), None) == Err(Errno::ECHILD) {
                break;
            }
        }
        found.took.push(began.elapsed());
        // `waitpid` above reaped the leader with its group.
        let _ = leader.try_wait();
        count_and_end(&print, &mut found).await;
    }
    found
}

/// Measures `stopProcess` of a program with `stopsignal=KILL` and `killasgroup`, until the answer.
pub(crate) async fn supervisord() -> Result<Found, String> {
    let supervisor = Supervisor::start().await?;
    let mut found = Found::default();
    for _ in 0..TREES {
        supervisor.call("startProcess");
        let daemon = number(&supervisor.daemon);
        grown(daemon, TREE_LEN).await;
        let mut print = Footprint::of_id("none");
        print.learn(daemon);
        let began = Instant::now();
        supervisor.call("stopProcess");
        found.took.push(began.elapsed());
        count_and_end(&print, &mut found).await;
    }
    Ok(found)
}

fn trick() -> Vec<String> {
    let own = programs::naughty().display().to_string();
    std::iter::once(own)
        .chain(TRICK.map(str::to_owned))
        .collect()
}

fn start(words: &[String]) -> Child {
    // Like a supervisor, this process adopts and reaps the leader's orphans.
    prctl::set_child_subreaper(true).expect("a process can be made a subreaper");
    Command::new(&words[0])
        .args(&words[1..])
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts")
}

async fn learn(leader: &Child) -> Footprint {
    grown(number(leader), TREE_LEN - 1).await;
    Footprint::of_leader("none", number(leader))
}

fn number(child: &Child) -> i32 {
    i32::try_from(child.id()).expect("numbers are small")
}

/// Counts the survivors, then ends them: the next tree must not share the machine with them.
async fn count_and_end(print: &Footprint, found: &mut Found) {
    let survivors: Vec<_> = print
        .count()
        .ancestry
        .into_iter()
        .filter(procfs::Proc::is_alive)
        .collect();
    found.survivors += survivors.len();
    for proc in &survivors {
        kill_exactly(proc, Signal::SIGKILL);
    }
    eventually("survivors are gone", PATIENCE, || {
        reap_orphans();
        survivors
            .iter()
            .all(|proc| !proc.is_still_there())
            .then_some(())
    })
    .await;
}

/// A control group of the bench's own, below its own.
struct Group(PathBuf);

impl Group {
    fn new() -> Result<Self, String> {
        let mounts = fs::read_to_string("/proc/self/mounts").map_err(|error| error.to_string())?;
        let mount = mounts
            .lines()
            .find_map(|line| {
                let mut fields = line.split(' ');
                let point = fields.nth(1)?;
                (fields.next()? == "cgroup2").then(|| point.to_owned())
            })
            .ok_or("no cgroup v2 is mounted")?;
        let path = Path::new(&mount).join(format!("kennel-bench-{}", kennel_tests::new_run_id()));
        fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(path))
    }

    fn is_populated(&self) -> bool {
        must("events", fs::read_to_string(self.0.join("cgroup.events"))).contains("populated 1")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        reap_orphans();
        let _ = fs::remove_dir(&self.0);
    }
}

/// supervisord with this one program.
struct Supervisor {
    _dir: TempDir,
    socket: PathBuf,
    daemon: Child,
}

impl Supervisor {
    async fn start() -> Result<Self, String> {
        let program = programs::tools().join("supervisor/bin/supervisord");
        if !program.exists() {
            return Err("it is not installed; `make bench` installs it".to_owned());
        }
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let (socket, config) = (
            dir.path().join("rpc.sock"),
            dir.path().join("supervisord.conf"),
        );
        let text = format!(
            "[supervisord]\nnodaemon=true\nlogfile=/dev/null\nlogfile_maxbytes=0\npidfile={dir}/pid\n\
             [unix_http_server]\nfile={socket}\n\
             [rpcinterface:supervisor]\nsupervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface\n\
             [program:tree]\ncommand={command}\nautostart=false\nautorestart=false\nstartsecs=0\n\
             stopsignal=KILL\nstopasgroup=true\nkillasgroup=true\nstdout_logfile=NONE\nstderr_logfile=NONE\n",
            dir = dir.path().display(),
            socket = socket.display(),
            command = trick().join(" "),
        );
        fs::write(&config, text).map_err(|error| error.to_string())?;
        let mut words = vec![program.display().to_string(), "-c".to_owned()];
        words.push(config.display().to_string());
        let daemon = start(&words);
        let started = Self {
            _dir: dir,
            socket,
            daemon,
        };
        eventually("supervisord listens", PATIENCE, || {
            UnixStream::connect(&started.socket).ok()
        })
        .await;
        Ok(started)
    }

    /// Makes one call of its XML-RPC, which answers when it is done.
    fn call(&self, method: &str) {
        let body = format!(
            "<?xml version=\"1.0\"?><methodCall><methodName>supervisor.{method}</methodName><params>\
             <param><value><string>tree</string></value></param>\
             <param><value><boolean>1</boolean></value></param></params></methodCall>"
        );
        let mut socket = must("connect", UnixStream::connect(&self.socket));
        let request = format!(
            "POST /RPC2 HTTP/1.0\r\nContent-Type: text/xml\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        must("call", socket.write_all(request.as_bytes()));
        let mut answer = String::new();
        must(
            "answer",
            socket.take(ANSWER_BYTES_MAX).read_to_string(&mut answer),
        );
        assert!(
            answer.contains("<boolean>1</boolean>"),
            "{method}: {answer}"
        );
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        let below = procfs::descendants(&procfs::all(), number(&self.daemon));
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        for proc in &below {
            kill_exactly(proc, Signal::SIGKILL);
        }
        reap_orphans();
    }
}
