//! Upgrade in place: the server makes room for one of the installed binary.
//!
//! The binary is checked first (`keeper::check`); only then is the server asked to leave. Where the new one does not
//! come to serve, or dies or hangs right after that, one is started from the previous binary.

use super::{Keeper, ending::millis};
use crate::{
    keeper::{binary::PinnedBinary, check::BinaryCheck},
    values::{KeeperEvent, Upgrade, UpgradeRefusal, UpgradeState},
    wire::Answer,
};
use kennel_lifecycle::Exit;
use kennel_linux::{clock, crash_point};
use std::{collections::VecDeque, io, mem, path::PathBuf, time::Duration};

/// Longest time for a server to leave; then it is killed, which costs what a crash costs.
const LEAVE_MAX: Duration = Duration::from_secs(8);
/// Longest time until a new server serves.
const READY_MAX: Duration = Duration::from_secs(30);
/// Number of upgrades whose results are known by their request ids.
const RESULTS_MAX: usize = 16;
/// Exit code of a server that was asked to leave.
const CODE_LEFT: i32 = 75;

/// State of upgrades.
pub(in crate::keeper) struct Upgrades {
    /// Path of this process's binary when it started; or why that is not known.
    path: Result<PathBuf, String>,
    /// The environment for the check of a binary.
    env: Vec<(String, String)>,
    /// The binary that servers are started from.
    binary: PinnedBinary,
    /// The previous one, until a server of `binary` has served for long enough.
    pub(super) previous: Option<PinnedBinary>,
    stage: UpgradeStage,
    /// Upgrades for which a server has left, the last one first.
    results: VecDeque<Upgrade>,
}

/// Progress of an upgrade.
enum UpgradeStage {
    /// No upgrade is in progress.
    Idle,
    /// The new binary is being checked.
    Checking {
        check: Box<BinaryCheck>,
        asked: Asked,
    },
    /// The server finishes its work, or is gone already.
    Leaving { next: PinnedBinary },
    /// A server of the new binary is starting.
    Starting,
    /// The new server did not come to serve; one of the former binary is starting.
    FallingBack,
}

/// Origin of an upgrade.
struct Asked {
    /// The request to answer; absent: a signal requested it, and the server logs the result.
    seq: Option<u64>,
    request_id: Option<String>,
}

impl Upgrades {
    pub(in crate::keeper) fn new(path: io::Result<PathBuf>, env: Vec<(String, String)>) -> Self {
        Self {
            path: path.map_err(|error| error.to_string()),
            env,
            binary: PinnedBinary::own(),
            previous: None,
            stage: UpgradeStage::Idle,
            results: VecDeque::new(),
        }
    }

    pub(in crate::keeper) fn binary(&self) -> &PinnedBinary {
        &self.binary
    }

    /// Returns the upgrade to report to the next server. If it serves, that is the result.
    pub(super) fn for_next_server(&self) -> Option<Upgrade> {
        self.results.front().cloned()
    }

    /// Whether a server has left for another one that does not serve yet: nothing is lost so far.
    pub(super) fn is_between_servers(&self) -> bool {
        match self.stage {
            UpgradeStage::Idle | UpgradeStage::Checking { .. } => false,
            UpgradeStage::Leaving { .. } | UpgradeStage::Starting | UpgradeStage::FallingBack => {
                true
            }
        }
    }

    pub(super) fn is_leaving(&self) -> bool {
        matches!(self.stage, UpgradeStage::Leaving { .. })
    }

    pub(super) fn wakes_at(&self) -> Option<u64> {
        match &self.stage {
            UpgradeStage::Checking { check, .. } => check.wakes_at(),
            _ => None,
        }
    }

    /// Whether this is the process of the binary that is being checked.
    pub(super) fn is_checking(&self, pid: i32) -> bool {
        matches!(&self.stage, UpgradeStage::Checking { check, .. } if check.pid == pid)
    }

    /// Records that a server serves. Returns whether that completes an upgrade.
    pub(super) fn has_come_to_serve(&mut self) -> bool {
        let ends = matches!(
            self.stage,
            UpgradeStage::Starting | UpgradeStage::FallingBack
        );
        if ends {
            self.stage = UpgradeStage::Idle;
        }
        ends
    }

    /// Drops a check whose result is not needed any more.
    pub(super) fn drop_check(&mut self) -> Option<u64> {
        let UpgradeStage::Checking { check, asked } = &self.stage else {
            return None;
        };
        check.kill();
        let seq = asked.seq;
        self.stage = UpgradeStage::Idle;
        seq
    }

    /// Starts the check of the installed binary.
    fn check(&self, now: u64) -> Result<BinaryCheck, UpgradeRefusal> {
        let path = self.path.as_ref().map_err(|why| UpgradeRefusal::Unfit {
            binary: String::new(),
            why: format!("where the binary of this service is installed is not known: {why}"),
            speaks: None,
        })?;
        let begun =
            PinnedBinary::at(path).and_then(|binary| BinaryCheck::begin(binary, &self.env, now));
        begun.map_err(|error| UpgradeRefusal::Unfit {
            binary: path.display().to_string(),
            why: format!("it cannot be executed: {error}"),
            speaks: None,
        })
    }
}

impl Keeper {
    /// Begins an upgrade. `seq` absent: a signal requested it.
    pub(super) fn begin_upgrade(&mut self, seq: Option<u64>, request_id: Option<String>) {
        let mut results = self.upgrades.results.iter();
        let known = results.find(|known| request_id.is_some() && known.request_id == request_id);
        if let (Some(seq), Some(known)) = (seq, known) {
            let known = known.clone();
            return self.answer(seq, Answer::Upgrade(Ok(known)));
        }
        let asked = Asked { seq, request_id };
        if self.ending.asked {
            return self.refuse_upgrade(&asked, UpgradeRefusal::ShuttingDown);
        }
        let begins = self.server.ready_at.is_none();
        if begins || !matches!(self.upgrades.stage, UpgradeStage::Idle) {
            return self.refuse_upgrade(&asked, UpgradeRefusal::UnderWay);
        }
        match self.upgrades.check(clock::boot_ms()) {
            Ok(check) => {
                let check = Box::new(check);
                self.upgrades.stage = UpgradeStage::Checking { check, asked };
            }
            Err(refusal) => self.refuse_upgrade(&asked, refusal),
        }
    }

    fn refuse_upgrade(&mut self, asked: &Asked, refusal: UpgradeRefusal) {
        match asked.seq {
            Some(seq) => self.answer(seq, Answer::Upgrade(Err(refusal))),
            None => self.send_event(KeeperEvent::NotUpgraded(refusal)),
        }
    }

    /// Handles the exit of a binary that was checked.
    pub(super) fn checked(&mut self, exit: Exit) {
        let UpgradeStage::Checking { check, asked } =
            mem::replace(&mut self.upgrades.stage, UpgradeStage::Idle)
        else {
            return;
        };
        let next = match check.end(exit) {
            Ok(next) => next,
            Err(refusal) => return self.refuse_upgrade(&asked, refusal),
        };
        crash_point!("keeper.upgrade_checked");
        let upgrade = Upgrade {
            request_id: asked.request_id.clone(),
            at: clock::wall(),
            from_version: self.upgrades.binary.version.clone(),
            to_version: next.version.clone(),
            state: UpgradeState::Leaving,
        };
        self.upgrades.results.truncate(RESULTS_MAX - 1);
        self.upgrades.results.push_front(upgrade.clone());
        self.upgrades.stage = UpgradeStage::Leaving { next };
        if let Some(seq) = asked.seq {
            self.answer(seq, Answer::Upgrade(Ok(upgrade)));
        }
        self.server.kill_at = Some(clock::boot_ms() + millis(LEAVE_MAX));
        self.send_event(KeeperEvent::Leave {});
        crash_point!("keeper.leave_sent");
    }

    pub(super) fn look_after_upgrade(&mut self, now: u64) {
        if let UpgradeStage::Checking { check, .. } = &mut self.upgrades.stage
            && now >= check.by
        {
            check.give_up();
        }
    }

    /// Cancels a check whose result is not needed any more: the service ends, or its server is lost.
    pub(super) fn cancel_check(&mut self) {
        if let Some(seq) = self.upgrades.drop_check() {
            let refusal = UpgradeRefusal::ShuttingDown;
            self.answer(seq, Answer::Upgrade(Err(refusal)));
        }
    }

    /// Continues an upgrade after the server has been reaped in the middle of it: the next one is started at once, from
    /// whichever binary. `false`: none is left to try.
    pub(super) fn proceed_with_upgrade(&mut self, how: &str, now: u64) -> bool {
        match mem::replace(&mut self.upgrades.stage, UpgradeStage::Idle) {
            UpgradeStage::Leaving { next } => {
                crash_point!("keeper.left");
                let former = mem::replace(&mut self.upgrades.binary, next);
                self.upgrades.previous = Some(former);
                self.set_upgrade_state(UpgradeState::Done);
                self.upgrades.stage = UpgradeStage::Starting;
            }
            // The fallback server then counts as any other lost server.
            UpgradeStage::FallingBack => {
                self.restarts.lost_only_now(now);
                return false;
            }
            other @ (UpgradeStage::Idle
            | UpgradeStage::Checking { .. }
            | UpgradeStage::Starting) => {
                let Some(previous) = self.upgrades.previous.take() else {
                    self.upgrades.stage = other;
                    return false;
                };
                self.upgrades.binary = previous;
                let why = format!("the new server {how}");
                self.set_upgrade_state(UpgradeState::FellBack(why));
                self.upgrades.stage = UpgradeStage::FallingBack;
            }
        }
        self.restarts.at_once(now);
        true
    }

    fn set_upgrade_state(&mut self, state: UpgradeState) {
        if let Some(last) = self.upgrades.results.front_mut() {
            last.state = state;
        }
    }

    /// Sets the bounds of a server that was started in the middle of an upgrade.
    pub(super) fn bound_new_server(&mut self, now: u64) {
        if self.upgrades.is_between_servers() {
            self.server.kill_at = Some(now + millis(READY_MAX));
        }
    }

    /// Whether the server exited as it was asked to.
    pub(super) fn has_left(&self) -> bool {
        self.upgrades.is_leaving() && self.server.exit == Some(Exit::Code(CODE_LEFT))
    }
}
