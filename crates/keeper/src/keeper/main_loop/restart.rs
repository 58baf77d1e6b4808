//! Restart of a lost server: another one is started and adopts the runs.
//!
//! Runs continue meanwhile, with their ladders, deadlines and pauses. Only where no server comes for too long are they
//! ended: `orphan_clock` counts that time.

use super::{Keeper, LISTENING_CHECK_MS, SERVER, ending::millis, orphan_clock::OrphanClock};
use crate::{
    keeper::{run::Run, server::Server, serving::Serving as ServingLock},
    skipped::SkippedNames,
    values::{FormerServer, KeeperHello},
    wire::{Head, ToServer},
};
use kennel_lifecycle::RunId;
use kennel_linux::crash_point;
use nix::sys::epoll::{EpollEvent, EpollFlags};
use std::{ffi::OsString, rc::Rc, time::Duration};

/// Longest wait between the loss of a server and the start of the next one: a small part of the time for which runs
/// continue without a server, though it does not count towards that.
const BACK_OFF_MS_MAX: u64 = 5_000;
/// The first wait; each one after it is twice as long.
const BACK_OFF_MS: u64 = 1_000;
/// Uptime of a server after which its loss is not blamed on its start.
const STEADY_MS: u64 = 2_000;

/// History of this keeper's servers, and the time of the next start.
pub(in crate::keeper) struct Restarts {
    argv: Vec<OsString>,
    /// Held by each server too.
    serving_lock: ServingLock,
    hello: KeeperHello,
    /// Time for which runs continue without a server.
    orphan_ttl: Duration,
    /// Number of servers before this one.
    count: u32,
    /// Exit of the last of them.
    former: Option<FormerServer>,
    /// Starts since a server has served for long enough.
    tries: u32,
    /// No server is running, and the next one is started at this time.
    next_at: Option<u64>,
    serving: Serving,
}

/// Whether a server serves.
#[derive(Clone, Copy)]
enum Serving {
    /// No server has served yet. Nothing was lost with such a server, and its exit code tells why it did not serve.
    NotYet,
    /// The server is ready.
    Ready,
    /// The server was lost, and no other one is ready yet.
    Lost(OrphanClock),
    /// No other server came for so long that the runs were ended.
    Abandoned,
}

impl Restarts {
    pub(in crate::keeper) fn new(
        argv: Vec<OsString>,
        serving_lock: ServingLock,
        hello: KeeperHello,
        orphan_ttl: Duration,
    ) -> Self {
        Self {
            argv,
            serving_lock,
            hello,
            orphan_ttl,
            count: 0,
            former: None,
            tries: 0,
            next_at: None,
            serving: Serving::NotYet,
        }
    }

    /// Records that a server of this keeper serves.
    pub(super) fn served(&mut self) {
        self.serving = Serving::Ready;
    }

    /// Whether any server of this keeper has ever served.
    pub(super) fn has_served(&self) -> bool {
        !matches!(self.serving, Serving::NotYet)
    }

    /// Whether a server has served, and none does now.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self.serving, Serving::Lost(_) | Serving::Abandoned)
    }

    fn lost(&mut self, now: u64) {
        if let Serving::Ready = self.serving {
            self.serving = Serving::Lost(OrphanClock::of_loss(now));
        }
    }

    /// Counts the loss from now: until now the server was being replaced.
    pub(super) fn lost_only_now(&mut self, now: u64) {
        if let Serving::Lost(clock) = &mut self.serving {
            *clock = OrphanClock::of_loss(now);
        }
    }

    /// Schedules the next start without a wait.
    pub(super) fn at_once(&mut self, now: u64) {
        self.next_at = Some(now);
    }

    /// Schedules the next start: at once where the last server had served, and with a growing wait where none does.
    pub(super) fn plan(&mut self, ready_at: Option<u64>, now: u64) {
        if is_steady(ready_at, now) {
            self.tries = 0;
        }
        self.next_at = Some(now.saturating_add(back_off(self.tries)));
        if let Serving::Lost(clock) = &mut self.serving {
            clock.keeper_waits(now);
        }
        self.tries = self.tries.saturating_add(1);
    }

    /// Records that the next server has been started, or that its start failed.
    fn started(&mut self, now: u64) {
        self.next_at = None;
        if let Serving::Lost(clock) = &mut self.serving {
            clock.server_started(now);
        }
    }

    /// Records the end of a server, for the next one.
    pub(super) fn remember(&mut self, former: Option<FormerServer>) {
        self.former = former;
    }

    /// Gives up: no further server is started.
    pub(super) fn give_up(&mut self) {
        self.next_at = None;
    }

    pub(super) fn is_planned(&self) -> bool {
        self.next_at.is_some()
    }

    /// Returns when runs without a server are ended.
    fn abandon_at(&self) -> Option<u64> {
        match self.serving {
            Serving::Lost(clock) => clock.reaches_at(millis(self.orphan_ttl)),
            Serving::NotYet | Serving::Ready | Serving::Abandoned => None,
        }
    }
}

/// Whether a server that became ready then has served long enough.
fn is_steady(ready_at: Option<u64>, now: u64) -> bool {
    ready_at.is_some_and(|at| now.saturating_sub(at) >= STEADY_MS)
}

fn back_off(tries: u32) -> u64 {
    match tries.checked_sub(1) {
        None => 0,
        Some(before) => BACK_OFF_MS
            .saturating_mul(1 << before.min(u64::BITS / 2))
            .min(BACK_OFF_MS_MAX),
    }
}

impl Keeper {
    /// Whether another server follows when this one exits otherwise than in order.
    pub(super) fn will_restart(&self) -> bool {
        let continues = !self.ending.asked || self.upgrades.is_between_servers();
        self.restarts.has_served() && continues
    }

    /// Returns when to check the server without any event. A server that was asked to exit has its own bound.
    pub(super) fn server_wakes_at(&self) -> Option<u64> {
        let times = [
            self.server.ping_at(),
            self.restarts.next_at,
            self.abandon_at(),
        ];
        let next = times.into_iter().flatten().min();
        next.filter(|_| self.will_restart())
    }

    /// Returns when runs without a server are ended. A server that is being replaced is not lost.
    fn abandon_at(&self) -> Option<u64> {
        let between = self.upgrades.is_between_servers();
        self.restarts.abandon_at().filter(|_| !between)
    }

    pub(super) fn look_after_server(&mut self, now: u64) {
        if self.server.kill_at.is_some_and(|at| now >= at) {
            self.server.kill();
        }
        if !self.will_restart() {
            return;
        }
        if !self.server.ping(now) {
            self.server.kill_hung();
        }
        if self.abandon_at().is_some_and(|at| now >= at) {
            self.restarts.serving = Serving::Abandoned;
            self.each_run(now, |run| {
                if !run.outlives_keeper() {
                    run.abandon(now);
                }
            });
        }
        if self.restarts.next_at.is_some_and(|at| now >= at) {
            self.start_server(now);
        }
    }

    /// Records that the server reads messages. Once it has served for long enough, no binary is retained for its loss.
    pub(super) fn server_answered(&mut self, now: u64) {
        self.server.answered();
        if is_steady(self.server.ready_at, now) {
            self.upgrades.previous = None;
        }
    }

    /// Handles the close of a server's socket where another server will come.
    pub(super) fn lose_server(&mut self, now: u64) {
        self.restarts.lost(now);
        self.each_run(now, Run::server_lost);
    }

    fn start_server(&mut self, now: u64) {
        self.restarts.started(now);
        let (binary, argv) = (self.upgrades.binary(), &self.restarts.argv);
        match Server::start(binary, argv, self.restarts.serving_lock.lock()) {
            Ok(server) => self.server = server,
            Err(error) => {
                let how = format!("could not be started: {error}");
                if !self.proceed_with_upgrade(&how, now) {
                    self.restarts.plan(None, now);
                }
                return;
            }
        }
        crash_point!("keeper.server_started");
        self.restarts.count = self.restarts.count.saturating_add(1);
        let watched = self.server.socket.as_ref().is_some_and(|socket| {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, SERVER);
            self.epoll.add(socket, event).is_ok()
        });
        if watched {
            self.hand_over();
            // Runs wait for the new server, so a hang before it serves is also detected.
            self.server.must_answer(now);
            self.bound_new_server(now);
            crash_point!("keeper.handed_over");
            if self.ending.asked {
                self.send_shutdown(now);
            }
        } else {
            // A server whose messages cannot be received counts as lost. SIGCHLD announces its exit.
            self.server.socket = None;
            self.server.kill();
        }
    }

    /// Sends a new server the description of this keeper, its runs, and their unacknowledged reports.
    pub(super) fn hand_over(&mut self) {
        let mut runs: Vec<&Run> = self.runs.values().collect();
        runs.sort_unstable_by_key(|run| run.id);
        let held = runs.iter().filter_map(|run| {
            let (held, outputs) = run.held()?;
            let message = ToServer::Held(Box::new(held));
            Some((Head::of_run(run.id), message, outputs))
        });
        let held: Vec<_> = held.collect();
        self.skipped = SkippedNames::default();
        let hello = ToServer::Hello {
            held: u32::try_from(held.len()).unwrap_or(u32::MAX),
            hello: Box::new(KeeperHello {
                late: self.late.values().map(|awaited| awaited.run).collect(),
                restarts: self.restarts.count,
                former: self.restarts.former.clone(),
                upgrade: self.upgrades.for_next_server(),
                ..self.restarts.hello.clone()
            }),
        };
        let sockets = self.listening.iter().map(|l| Rc::clone(&l.socket));
        let mut messages = vec![(Head::NONE, hello, sockets.collect())];
        messages.extend(held);
        for run in runs {
            let kept = run.kept().cloned();
            let id = run.id;
            messages.extend(
                kept.map(|(at, fact)| {
                    (Head::of_run(id), ToServer::Report { at, fact }, Vec::new())
                }),
            );
        }
        self.server.hand_over(messages);
    }

    /// Binds listening sockets again whose files were removed, and gives them to the server. The next server gets them
    /// with its hello.
    pub(super) fn keep_listening(&mut self, now: u64) {
        if now < self.listening_due {
            return;
        }
        self.listening_due = now + LISTENING_CHECK_MS;
        if self.ending.drained_by.is_some() {
            return;
        }
        for index in 0..self.listening.len() {
            // An error persists: the leak check shows the socket as missing, and the next check tries again.
            if let Ok(true) = self.listening[index].bind_again() {
                let socket = Rc::clone(&self.listening[index].socket);
                let number = u32::try_from(index).unwrap_or(u32::MAX);
                self.send(Head::NONE, &ToServer::Rebound(number), vec![socket]);
            }
        }
    }

    /// Lets each run act, and take a step after that.
    pub(super) fn each_run(&mut self, now: u64, mut act: impl FnMut(&mut Run)) {
        let ids: Vec<RunId> = self.runs.keys().copied().collect();
        for id in ids {
            if let Some(run) = self.runs.get_mut(&id) {
                act(run);
            }
            self.touch(id, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: R-10
    #[test]
    fn failing_servers_are_restarted_with_growing_delay() {
        let waits: Vec<u64> = (0..9).map(|tries| back_off(tries) / 1_000).collect();
        assert_eq!(waits, [0, 1, 2, 4, 5, 5, 5, 5, 5]);
        assert_eq!(back_off(u32::MAX), BACK_OFF_MS_MAX);
    }
}
