//! Shutdown of the service: on request, or because its server has exited and none replaces it.

use super::Keeper;
use crate::values::KeeperEvent;
use kennel_lifecycle::{Exit, ladder::StopPlan, limits};
use kennel_linux::{clock, crash_point, reap};
use std::time::Duration;

/// Time between the end of the server's socket and SIGKILL to a server that does not exit.
const SERVER_EXIT_MS: u64 = 5_000;
/// Time after the deadline of a shutdown for the server's last commits, before it counts as hung.
const LAST_COMMITS_MS: u64 = 5_000;
/// Longest time for a server that is not ready yet to become so after SIGTERM or SIGINT; it does not listen before.
const START_UP_MS: u64 = 2_000;
/// Most messages that a dead server can have left in the socket.
const LAST_WORDS_MAX: usize = 65_536;
/// How long a directory of an ended run may stay in use when all else is done, and how often it is tried.
const LEFTOVERS_MAX: u64 = 1_000;
const LEFTOVERS_POLL: Duration = Duration::from_millis(2);
/// Exit code where the service ended without a server.
const CODE_LOST: i32 = 70;
/// Exit code where a process was still alive at the deadline.
const CODE_ALIVE: i32 = 1;

/// Progress of the shutdown.
#[derive(Default)]
pub(super) struct Ending {
    /// Whole time of the shutdown.
    pub(super) timeout: Duration,
    /// SIGTERM or SIGINT was received.
    pub(super) asked: bool,
    /// The signal was received again.
    pub(super) again: bool,
    /// No further server is started: at this time everything ends, finished or not.
    pub(super) drained_by: Option<u64>,
}

impl Ending {
    /// Returns the longest grace of a run.
    fn grace(&self) -> Duration {
        limits::shutdown_grace(self.timeout)
    }
}

impl Keeper {
    pub(super) fn shut_down(&mut self) {
        let now = clock::boot_ms();
        let again = std::mem::replace(&mut self.ending.asked, true);
        self.notifier.stopping();
        self.ending.again |= again;
        self.cancel_check();
        if self.server.socket.is_none() && self.upgrades.is_between_servers() {
            // The next server gets the shutdown request.
            return;
        }
        self.restarts.give_up();
        if self.server.socket.is_none() {
            // No server exists to ask: the deadline of remaining runs counts from here.
            if self.ending.drained_by.is_none() {
                return self.end_all(now);
            }
            let grace = if again {
                Duration::ZERO
            } else {
                self.ending.grace()
            };
            return self.hasten(grace, now);
        }
        self.send_shutdown(now);
    }

    pub(super) fn send_shutdown(&mut self, now: u64) {
        let word = if self.ending.again {
            KeeperEvent::ShutdownNow {}
        } else {
            self.server.kill_at = Some(now + self.server_patience());
            KeeperEvent::Shutdown {}
        };
        self.send_event(word);
    }

    pub(super) fn server_is_ready(&mut self) {
        let now = clock::boot_ms();
        self.server.is_ready(now);
        self.restarts.served();
        self.notifier.ready();
        if self.upgrades.has_come_to_serve() {
            crash_point!("keeper.upgraded");
            self.server.kill_at = None;
        }
        if self.ending.asked && self.server.socket.is_some() {
            self.server.kill_at = Some(now + self.server_patience());
        }
    }

    /// Time that the server may take to exit after the request.
    fn server_patience(&self) -> u64 {
        if self.restarts.has_served() || !self.runs.is_empty() {
            millis(self.ending.timeout) + LAST_COMMITS_MS
        } else {
            START_UP_MS
        }
    }

    /// Handles the close of the server's socket, after all its requests. Gates shut at once; whether another server
    /// adopts the rest is known when this one has exited.
    pub(super) fn server_gone(&mut self) {
        crash_point!("keeper.server_lost");
        let now = clock::boot_ms();
        if let Some(socket) = self.server.socket.take() {
            let _ = self.epoll.delete(&socket);
        }
        self.server_is_behind = false;
        self.orphans.clear();
        self.reapings.clear();
        self.cancel_check();
        self.server.kill_at.get_or_insert(now + SERVER_EXIT_MS);
        if self.will_restart() {
            if self.upgrades.is_leaving() {
                self.notifier.reloading();
            } else {
                self.notifier.server_lost();
            }
            self.lose_server(now);
        } else {
            self.end_all(now);
        }
    }

    /// Ends all runs, because no server will come: gates shut, and each run ends by its own plan.
    fn end_all(&mut self, now: u64) {
        if !self.restarts.has_served() && !self.ending.asked {
            self.give_back();
        }
        let in_order = self.ending.asked;
        let mut longest = 0;
        self.each_run(now, |run| {
            longest = longest.max(millis(run.grace()));
            run.server_gone(in_order, now);
        });
        let by = now.saturating_add(longest);
        self.ending.drained_by = Some(by.saturating_add(millis(self.ending.timeout)));
        if self.ending.asked {
            self.hasten(self.ending.grace(), now);
        }
    }

    /// Hastens the end of what is left. A server that has exited in order has left nothing running. What it has left
    /// all the same, and what is left when the end of the service is awaited, is ended within the bound of a shutdown,
    /// whatever its own plan says.
    fn hasten(&mut self, grace: Duration, now: u64) {
        let plan = StopPlan::abort(grace);
        self.each_run(now, |run| run.stop(&plan, now));
        let bound = now + millis(self.ending.timeout);
        let by = self.ending.drained_by.map_or(bound, |by| by.min(bound));
        self.ending.drained_by = Some(by);
    }

    /// Handles the exit of the server, which has been reaped.
    pub(super) fn server_ended(&mut self, exit: Exit) {
        self.server.exit = Some(exit);
        #[cfg(debug_assertions)]
        kennel_linux::crash_point::server_is(None);
        // The server is dead, so all its messages have arrived: read to the end.
        self.handle_server_messages(LAST_WORDS_MAX);
        // Another process has the socket's other end; only the server is obeyed.
        if self.server.socket.is_some() {
            self.server_gone();
        }
        let now = clock::boot_ms();
        // The exit of a server during an upgrade does not end the service.
        let is_the_end = self.ending.asked || !self.upgrades.is_between_servers();
        if exit == Exit::Code(0) && is_the_end {
            if self.ending.drained_by.is_none() {
                self.end_all(now);
            }
            self.hasten(self.ending.grace(), now);
        } else if self.will_restart() {
            crash_point!("keeper.server_reaped");
            self.server_lost_or_left(now);
        }
    }

    fn server_lost_or_left(&mut self, now: u64) {
        let former = self.server.former(self.has_left());
        let how = former.as_ref().map(ToString::to_string);
        self.restarts.remember(former);
        if self.proceed_with_upgrade(&how.unwrap_or_default(), now) {
            return;
        }
        if self.will_restart() {
            self.restarts.plan(self.server.ready_at, now);
        } else if self.ending.drained_by.is_none() {
            self.end_all(now);
        }
    }

    pub(super) fn finished(&mut self, now: u64) -> Option<i32> {
        let exit = self.server.exit?;
        if self.restarts.is_planned() {
            return None;
        }
        let left = self.runs.values().any(|run| !run.has_ended());
        let drained_by = self.ending.drained_by.unwrap_or(now);
        // Processes that SIGKILL does not end are left to the next start; the shutdown does not wait for them.
        let waits = self
            .runs
            .values()
            .any(|run| !run.has_ended() && !run.is_stuck());
        if waits && now < drained_by {
            return None;
        }
        if !self.restarts.has_served() && self.server.killed {
            // Shutdown was requested before the service had begun.
            return Some(if left { CODE_ALIVE } else { 0 });
        }
        Some(match exit {
            Exit::Code(code) if !self.restarts.has_served() => code,
            Exit::Code(0) if left => CODE_ALIVE,
            Exit::Code(0) => 0,
            Exit::Code(CODE_ALIVE) if !self.server.killed && !self.restarts.is_lost() => CODE_ALIVE,
            _ => CODE_LOST,
        })
    }

    /// Cleans up: ends idle shims, removes control groups; the socket files go with their owners.
    pub(super) fn close(&mut self) {
        let free = self.shims.values();
        let free = free.filter(|shim| shim.is_free && shim.foreign.is_none());
        let free: Vec<i32> = free.map(|shim| shim.pid).collect();
        self.pool.end();
        for pid in free {
            // SAFETY: kill takes integers; the pid is that of an unreaped child of this process.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            let _ = reap::await_end(pid);
        }
        self.exits.close();
        self.remove_leftovers();
        self.groups.remove();
    }

    /// A refused child is reported before it has wholly left its group.
    fn remove_leftovers(&mut self) {
        let by = clock::boot_ms() + LEFTOVERS_MAX;
        loop {
            if self.leftovers.remove() || clock::boot_ms() >= by {
                return;
            }
            std::thread::sleep(LEFTOVERS_POLL);
        }
    }
}

pub(super) fn millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
}
