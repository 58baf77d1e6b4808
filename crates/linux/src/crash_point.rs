//! Points at which a test kills a part of the service. Debug builds have them, a release build has none.
//!
//! `KENNEL_TEST_CRASH` names a directory. A point fires when there is a file of its name in it, which contains the
//! target: `server`, `keeper` or `both`; or `panic` or `hang`, for the process that reaches it. The file is renamed
//! first, so that a restarted process does not die at the same point. It contains the pids to kill then, by SIGKILL.

/// A named point. With a condition it fires only where that holds; a release build does not evaluate it.
#[cfg(debug_assertions)]
#[macro_export]
macro_rules! crash_point {
    ($name:literal) => {
        $crate::crash_point::reach($name)
    };
    ($name:literal, $at:expr) => {
        if $at {
            $crate::crash_point::reach($name)
        }
    };
}

/// Expands to nothing in a release build.
#[cfg(not(debug_assertions))]
#[macro_export]
macro_rules! crash_point {
    ($name:literal $(, $at:expr)?) => {{}};
}

#[cfg(debug_assertions)]
pub use armed::reach;
#[cfg(debug_assertions)]
pub use armed::{i_am_child_of_keeper, i_am_keeper, i_am_server, server_is};

#[cfg(debug_assertions)]
mod armed {
    use crate::pidfd::PidFd;
    use kennel_lifecycle::Signal;
    use std::{
        fs,
        os::unix::process::parent_id,
        path::PathBuf,
        sync::{
            OnceLock,
            atomic::{AtomicI32, Ordering},
        },
    };

    const VARIABLE: &str = "KENNEL_TEST_CRASH";

    static DIRECTORY: OnceLock<Option<PathBuf>> = OnceLock::new();
    /// Process id of the keeper; 0: not known, or gone.
    static KEEPER: AtomicI32 = AtomicI32::new(0);
    static SERVER: AtomicI32 = AtomicI32::new(0);

    /// Marks this process as the keeper.
    pub fn i_am_keeper() {
        KEEPER.store(own_pid(), Ordering::Relaxed);
        let _ = directory();
    }

    /// Marks the parent of this process, and of its forks, as the keeper.
    pub fn i_am_child_of_keeper() {
        KEEPER.store(parent_id().cast_signed(), Ordering::Relaxed);
        let _ = directory();
    }

    /// Marks this process as the server, and its parent as the keeper.
    pub fn i_am_server() {
        i_am_child_of_keeper();
        SERVER.store(own_pid(), Ordering::Relaxed);
    }

    /// Records the keeper's server, while it is not reaped.
    pub fn server_is(pid: Option<i32>) {
        SERVER.store(pid.unwrap_or(0), Ordering::Relaxed);
    }

    /// Fires the point, if a test has armed it.
    pub fn reach(point: &str) {
        let Some(directory) = directory() else { return };
        let file = directory.join(point);
        let fired = directory.join(format!("{point}.fired"));
        let Ok(who) = fs::read_to_string(&file) else {
            return;
        };
        // rename(2) lets only one thread of one process past this point.
        if fs::rename(&file, &fired).is_err() {
            return;
        }
        assert_ne!(who.trim(), "panic", "a test has armed {point}");
        if who.trim() == "hang" {
            // SIGSTOP stops the whole process: no thread answers.
            if let Ok(own) = PidFd::open(own_pid()) {
                own.signal(Signal::STOP);
            }
            return;
        }
        let (keeper, server) = match who.trim() {
            "keeper" => (true, false),
            "server" => (false, true),
            _ => (true, true),
        };
        let (its_keeper, its_server) = (
            KEEPER.load(Ordering::Relaxed),
            SERVER.load(Ordering::Relaxed),
        );
        let own = own_pid();
        let hit = [(keeper, its_keeper), (server, its_server)];
        let hit = hit.iter().filter(|(hit, _)| *hit);
        let pids: Vec<String> = hit.map(|(_, pid)| pid.to_string()).collect();
        let _ = fs::write(&fired, pids.join(" ") + "\n");
        if keeper && own != its_keeper {
            kill(its_keeper, || parent_id().cast_signed() == its_keeper);
        }
        // A shim does not know whether the server of its birth is still alive.
        if server && own == its_keeper {
            // The server is unreaped: its pid is not reused.
            kill(its_server, || its_server > 0);
        }
        if (keeper && own == its_keeper) || (server && own == its_server) {
            loop {
                kill(own, || true);
            }
        }
    }

    fn kill(pid: i32, is_it: impl Fn() -> bool) {
        if let Ok(process) = PidFd::open(pid)
            && is_it()
        {
            process.signal(Signal::KILL);
        }
    }

    fn directory() -> Option<&'static PathBuf> {
        let read = || std::env::var_os(VARIABLE).map(PathBuf::from);
        DIRECTORY.get_or_init(read).as_ref()
    }

    fn own_pid() -> i32 {
        std::process::id().cast_signed()
    }
}
