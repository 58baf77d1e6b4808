//! Reports of the command by `sd_notify(3)`, and the time limits that depend on them. All of this works without a
//! server.
//!
//! A message is read, handled, and removed from the socket only after that: should this process die meanwhile, the next
//! keeper finds it again, and its effects are not repeated.

use super::{CommandStage, Run};
use crate::{
    notify_place::NotifyPlace,
    values::{Extended, Fact, Notified},
    wire::adoption::{WireMemory, WireNotices},
};
use kennel_lifecycle::{
    Activity, Countdown, NOTIFIED, Notice, Policy, StatusText, StopReason, WatchdogSign,
    ladder::Ladder, limits::NOTICE_BYTES_MAX,
};
use kennel_linux::{
    clock, fdpass::Datagram, notify_socket::NotifySocket, peer::Descent, tree::Root,
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    time::Duration,
};

/// Interval in which the last status and the last activity are reported, in milliseconds.
const NEWS_EVERY_MS: u64 = 100;
/// Most messages of one run that are read in that time: further ones wait in the socket, and the sender with them.
const NOTICES_AT_ONCE_MAX: u32 = 100;
/// Most refused messages of one run that are reported.
const REFUSALS_REPORTED_MAX: u32 = 8;
/// Delay of this process beyond which a missing watchdog message says more about the keeper than about the command; also how
/// long an expired limit waits for unread messages.
const LATE_MS: u64 = 1_000;

/// The socket of one attempt, and its reports.
pub(in crate::keeper) struct RunNotices {
    socket: NotifySocket,
    place: NotifyPlace,
    /// Whether the shim has a copy, for the next keeper.
    shim_has_copy: bool,
    ready: bool,
    /// Time left until it must be ready.
    start: Option<Countdown>,
    /// Time until the next watchdog message is due; stands still while none is.
    watchdog: Option<Countdown>,
    fails: bool,
    /// Time at which a limit was found expired while unread messages could still meet it.
    over_since: Option<u64>,
    current: News,
    reported: News,
    reported_at: Option<u64>,
    /// Start of the count of messages, and their number.
    counted: (u64, u32),
    refusals: u32,
}

/// News that is reported at most every [`NEWS_EVERY_MS`].
#[derive(Clone, Default, PartialEq, Eq)]
struct News {
    status: StatusText,
    activity: Option<Activity>,
    /// Totals of the extensions of the limits that the keeper counts.
    extended: Extended,
    /// Time until which the limits that the server counts are extended.
    until: Option<u64>,
}

impl RunNotices {
    /// Makes a socket in this place, where the policy enables it.
    pub(in crate::keeper) fn open(
        policy: &Policy,
        place: NotifyPlace,
        shim_has_copy: bool,
    ) -> io::Result<Option<Self>> {
        if !policy.takes_notices() {
            return Ok(None);
        }
        let socket = place.bind()?;
        Ok(Some(Self {
            shim_has_copy,
            ..Self::new(socket, place, policy)
        }))
    }

    fn new(socket: NotifySocket, place: NotifyPlace, policy: &Policy) -> Self {
        Self {
            socket,
            place,
            shim_has_copy: false,
            ready: false,
            start: policy.notice_due_within().map(Countdown::new),
            watchdog: policy.watchdog().map(Countdown::new),
            fails: false,
            over_since: None,
            current: News::default(),
            reported: News::default(),
            reported_at: None,
            counted: (0, 0),
            refusals: 0,
        }
    }

    /// Continues the socket of a run whose keeper is gone.
    pub(super) fn adopted(
        socket: OwnedFd,
        place: NotifyPlace,
        policy: &Policy,
        memory: &WireMemory,
    ) -> Self {
        let known = memory.notices;
        let mut whole = Self::new(NotifySocket::from_fd(socket), place, policy);
        whole.current.status.stopping = known.stopping;
        // Extension totals are part of the attempt; the later deadline is reported as news.
        whole.current.extended = memory.extended;
        whole.reported.extended = memory.extended;
        whole.current.until = known.until;
        Self {
            shim_has_copy: true,
            ready: known.ready,
            start: known.start.or(whole.start).filter(|_| !known.ready),
            ..whole
        }
    }

    /// Returns what the next keeper has to know.
    pub(super) fn remembered(&self) -> WireNotices {
        WireNotices {
            ready: self.ready,
            start: self.start,
            until: self.current.until,
            stopping: self.current.status.stopping,
        }
    }

    /// Returns the descriptor that the shim stores for the next keeper.
    pub(in crate::keeper) fn for_shim(&self) -> Option<BorrowedFd<'_>> {
        self.shim_has_copy.then(|| self.socket.as_fd())
    }

    /// Returns the socket, while more may be read from it.
    fn waits_for(&self) -> Option<BorrowedFd<'_>> {
        (self.counted.1 < NOTICES_AT_ONCE_MAX).then(|| self.socket.as_fd())
    }

    /// Returns when to take the next step without any event.
    fn wake_at(&self) -> Option<u64> {
        let news = (self.current != self.reported)
            .then(|| self.reported_at.map_or(0, |at| at + NEWS_EVERY_MS));
        let full = self.counted.1 >= NOTICES_AT_ONCE_MAX;
        let again = full.then_some(self.counted.0 + NEWS_EVERY_MS);
        let start = self.start.as_ref().and_then(Countdown::over_at);
        let watchdog = self.watchdog.as_ref().and_then(Countdown::over_at);
        let limits = match self.over_since {
            Some(since) => Some(since + LATE_MS),
            None => [start, watchdog].into_iter().flatten().min(),
        };
        [news, again, limits].into_iter().flatten().min()
    }

    /// Whether an expired limit is enforced now. Waiting messages are read first: a keeper that was restarted or is late would
    /// otherwise stop a command that sent its message in time. A command that floods the socket gains at most [`LATE_MS`].
    fn holds(&mut self, is_over: bool, now: u64) -> bool {
        let unread = || !matches!(self.socket.peek(), Ok(None));
        if !is_over || !unread() {
            self.over_since = None;
            return is_over;
        }
        now >= *self.over_since.get_or_insert(now) + LATE_MS
    }

    /// Counts one message; stops when there were too many.
    fn count(&mut self, now: u64) {
        self.forget_count(now);
        self.counted.1 += 1;
    }

    fn forget_count(&mut self, now: u64) {
        if now >= self.counted.0.saturating_add(NEWS_EVERY_MS) {
            self.counted = (now, 0);
        }
    }

    /// Returns the time left until the command must be ready, while it counts.
    pub(super) fn start_left(&self) -> Option<Countdown> {
        self.start
    }

    /// Extends the time until the command must be ready by so many milliseconds.
    pub(super) fn extend_start(&mut self, millis: u64, now: u64) {
        self.start.iter_mut().for_each(|l| l.extend(millis, now));
    }

    /// Has these totals of extensions taken for reported.
    pub(super) fn extensions_are_reported(&mut self, extended: Extended) {
        self.current.extended = extended;
        self.reported.extended = extended;
    }
}

impl Run {
    /// Returns the socket, while messages may be read: once the command has been executed, and within the rate limit.
    pub(in crate::keeper) fn reads_notices(&self) -> Option<BorrowedFd<'_>> {
        let notices = self
            .notices
            .as_ref()
            .filter(|_| self.stage == CommandStage::Ran);
        notices?.waits_for()
    }

    /// Reads the first message, and handles it. `false`: there is none, or it has to wait.
    pub(in crate::keeper) fn handle_notice(&mut self, now: u64) -> bool {
        if let Some(notices) = &mut self.notices {
            notices.forget_count(now);
        }
        if self.reads_notices().is_none() {
            return false;
        }
        let Some(notices) = &mut self.notices else {
            return false;
        };
        let Ok(Some(datagram)) = notices.socket.peek() else {
            return false;
        };
        notices.count(now);
        match self.refusal(&datagram) {
            Some(refused) => self.refuse_notice(refused),
            None if datagram.bytes.len() <= NOTICE_BYTES_MAX => {
                self.act_upon(Notice::parse(&datagram.bytes), now);
            }
            None => {}
        }
        true
    }

    /// Removes the message that was handled.
    pub(in crate::keeper) fn drop_notice(&self) {
        if let Some(notices) = &self.notices {
            notices.socket.drop_first();
        }
    }

    /// Returns why a message is refused: nothing shows that its sender is a process of this run at this moment.
    fn refusal(&self, datagram: &Datagram) -> Option<Notified> {
        let Some(sender) = &datagram.sender else {
            return Some(Notified::Refused {
                pid: 0,
                uid: 0,
                ended: false,
            });
        };
        let group = self.cgroup_path();
        let groups: Vec<&Path> = group.iter().map(AsRef::as_ref).collect();
        let ancestors = self.tree.as_ref().map(|tree| match tree.root {
            Root::Shim(shim) => shim,
            Root::Lost | Root::Nowhere => tree.leader_pid,
        });
        let ancestors: Vec<i32> = ancestors.into_iter().collect();
        // A sender outside the run's group whose ancestor dies is refused: only its message is lost.
        match sender.descent(&(&groups[..], &ancestors[..])) {
            Descent::Member => None,
            Descent::Ended if self.cgroup.iter().any(|own| sender.ended_in(own.inode)) => None,
            seen @ (Descent::Other | Descent::Ended | Descent::Unreadable) => {
                Some(Notified::Refused {
                    pid: sender.pid,
                    uid: sender.uid,
                    ended: seen == Descent::Ended,
                })
            }
        }
    }

    fn refuse_notice(&mut self, refused: Notified) {
        let Some(notices) = &mut self.notices else {
            return;
        };
        notices.refusals = notices.refusals.saturating_add(1);
        if notices.refusals <= REFUSALS_REPORTED_MAX {
            self.report(Fact::Notified(refused));
        }
    }

    fn act_upon(&mut self, notice: Notice, now: u64) {
        let time = self.policy.watchdog();
        let extends = notice.extend;
        let extends = extends.filter(|time| self.extend_by_notice(*time, now));
        let (extended, server_counts) = (self.extended, self.policy.server_counts_time());
        let Some(notices) = &mut self.notices else {
            return;
        };
        notices.current.extended = extended;
        if let Some(time) = extends.filter(|_| server_counts) {
            let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            let until = now.saturating_add(millis);
            notices.current.until = notices.current.until.max(Some(until));
        }
        if let Some(sign) = notice.watchdog {
            notices.watchdog = time.map(Countdown::new);
            notices.fails |= sign == WatchdogSign::Fails;
        }
        notices.current.status.stopping |= notice.stopping;
        if let Some(text) = notice.status {
            notices.current.status.text = text;
        }
        notices.current.activity = notice.activity.or(notices.current.activity);
        let is_news = notice.ready && !notices.ready && self.ladder.is_none();
        if is_news {
            notices.ready = true;
            notices.start = None;
            notices.watchdog = time.map(Countdown::new);
            self.report(Fact::Notified(Notified::Ready));
        }
    }

    /// Reports again that the attempt is ready: the previous keeper may have died before its report.
    pub(super) fn report_ready_again(&mut self) {
        if self.notices.as_ref().is_some_and(|notices| notices.ready) {
            self.report(Fact::Notified(Notified::Ready));
        }
    }

    /// Counts the time until it is ready and the time between watchdog messages, reports changes, and begins to stop
    /// the tree when a limit is reached.
    pub(super) fn keep_notices(&mut self, now: u64) {
        let paused = self.pause.stopped_since().is_some();
        let runs =
            self.stage == CommandStage::Ran && !self.heard.leader_exited && self.ladder.is_none();
        let (by_notice, time) = (self.policy.is_ready_by_notice(), self.policy.watchdog());
        let Some(notices) = &mut self.notices else {
            return;
        };
        notices.forget_count(now);
        if let Some(start) = notices.start.as_mut() {
            if runs && !paused {
                start.run(now);
            } else {
                start.stand(now);
            }
        }
        let counts =
            runs && !paused && (notices.ready || !by_notice) && !notices.current.status.stopping;
        match &mut notices.watchdog {
            Some(left) if counts => left.run(now),
            // After a pause the watchdog's whole time counts again.
            left => *left = time.map(Countdown::new),
        }
        let late = |left: &Countdown| left.over_at().is_some_and(|at| now >= at + LATE_MS);
        if notices.watchdog.as_ref().is_some_and(late) {
            // The host was suspended, or this process was stopped.
            notices.watchdog = time.map(Countdown::new);
            notices.watchdog.iter_mut().for_each(|left| left.run(now));
        }
        let is_over = |left: &Option<Countdown>| left.is_some_and(|left| left.is_over(now));
        let (late_start, late_sign) = (runs && is_over(&notices.start), is_over(&notices.watchdog));
        let holds = notices.holds(late_start || late_sign, now);
        let triggered = time.is_some() && counts && notices.fails;
        let reason = if late_start && holds {
            Some(StopReason::NotReady)
        } else {
            (triggered || (late_sign && holds)).then_some(StopReason::Watchdog { triggered })
        };
        self.report_news(Some(now));
        if let Some(reason) = reason {
            self.report(Fact::Stops(reason));
            self.ladder = Some(Ladder::start(&self.policy.stop_plan(), now));
        }
    }

    /// Reports what has changed: with the time, at most once in [`NEWS_EVERY_MS`]; without it, at once.
    pub(super) fn report_news(&mut self, now: Option<u64>) {
        let Some(notices) = &mut self.notices else {
            return;
        };
        let may = match (now, notices.reported_at) {
            (Some(now), Some(at)) => now >= at + NEWS_EVERY_MS,
            _ => true,
        };
        if notices.current == notices.reported || !may {
            return;
        }
        let before = std::mem::replace(&mut notices.reported, notices.current.clone());
        let news = notices.current.clone();
        notices.reported_at = now.or(notices.reported_at);
        if news.status != before.status {
            self.report(Fact::Notified(Notified::Status(news.status)));
        }
        if let Some(activity) = news.activity.filter(|_| news.activity != before.activity) {
            self.report(Fact::Notified(Notified::Activity(activity)));
        }
        for limit in Extended::LIMITS {
            let total = news.extended.of(limit);
            if total > before.extended.of(limit) {
                let by = NOTIFIED.to_owned();
                self.report(Fact::Extended { limit, total, by });
            }
        }
        if let Some(until) = news.until.filter(|_| news.until != before.until) {
            let left = until.saturating_sub(clock::boot_ms());
            let time = Duration::from_millis(left);
            self.report(Fact::Notified(Notified::Extends(time)));
        }
    }

    /// Returns when to take the next step for notices.
    pub(super) fn notices_wake_at(&self) -> Option<u64> {
        self.notices.as_ref()?.wake_at()
    }

    /// Ends the notices with their attempt: no more are read.
    pub(super) fn end_notices(&mut self) {
        self.report_news(None);
        if let Some(notices) = self.notices.take() {
            notices.place.remove();
        }
    }
}
