//! An upgrade in place: the server makes room for one of the binary that is installed by now.
//!
//! The binary is looked at first (`keeper::check`); only then is the server asked to leave. Where the new one does not
//! come to serve, one is started from the binary of before.

use super::{Keeper, ending::millis};
use crate::{
    keeper::{
        binary::Binary,
        check::{Check, Unfit},
    },
    values::{Upgrade, UpgradeRefusal, UpgradeState},
    wire::{Answer, ToServer},
};
use kennel_lifecycle::Exit;
use kennel_linux::{clock, crash_point};
use std::{io, mem, path::PathBuf, time::Duration};

/// How long a server may take to leave; then it is killed, which costs what a crash costs.
const LEAVE_MAX: Duration = Duration::from_secs(8);
/// How long a new server may take until it serves.
const READY_MAX: Duration = Duration::from_secs(30);
/// Exit code of a server that was asked to leave.
const CODE_LEFT: i32 = 75;

/// What is known of upgrades.
pub(in crate::keeper) struct Upgrades {
    /// Where this process's own binary was when it started; or why that is not known.
    path: Result<PathBuf, String>,
    /// The environment of a binary that is looked at.
    env: Vec<(String, String)>,
    /// What servers are started from.
    binary: Binary,
    stage: Stage,
    /// The last one for which a server has left.
    last: Option<Upgrade>,
}

/// How far an upgrade has come.
enum Stage {
    /// There is none.
    Idle,
    /// The new binary is looked at.
    Checking { check: Box<Check>, asked: Asked },
    /// The server finishes what it has; or it is gone already.
    Leaving { next: Binary },
    /// One of the new binary is to come to serve.
    Starting { former: Binary },
    /// It did not; one of the former binary is to.
    FallingBack,
}

/// Who has asked for it.
struct Asked {
    /// To answer; absent: it was a signal, and the server logs what comes of it.
    seq: Option<u64>,
    request_id: Option<String>,
}

impl Upgrades {
    pub(in crate::keeper) fn new(path: io::Result<PathBuf>, env: Vec<(String, String)>) -> Self {
        Self {
            path: path.map_err(|error| error.to_string()),
            env,
            binary: Binary::own(),
            stage: Stage::Idle,
            last: None,
        }
    }

    pub(in crate::keeper) fn binary(&self) -> &Binary {
        &self.binary
    }

    /// What the next server is told. If it serves, that is what has come of it.
    pub(super) fn told(&self) -> Option<Upgrade> {
        self.last.clone()
    }

    /// A server has left for another one, which has not come to serve yet: nothing is lost so far.
    pub(super) fn is_between_servers(&self) -> bool {
        match self.stage {
            Stage::Idle | Stage::Checking { .. } => false,
            Stage::Leaving { .. } | Stage::Starting { .. } | Stage::FallingBack => true,
        }
    }

    pub(super) fn is_leaving(&self) -> bool {
        matches!(self.stage, Stage::Leaving { .. })
    }

    pub(super) fn wakes_at(&self) -> Option<u64> {
        match &self.stage {
            Stage::Checking { check, .. } => check.wakes_at(),
            _ => None,
        }
    }

    /// Whether it is the binary that is being looked at.
    pub(super) fn is_checking(&self, pid: i32) -> bool {
        matches!(&self.stage, Stage::Checking { check, .. } if check.pid == pid)
    }

    /// A server serves. Whether that ends an upgrade; then no other binary is needed any more.
    pub(super) fn has_come_to_serve(&mut self) -> bool {
        let ends = matches!(self.stage, Stage::Starting { .. } | Stage::FallingBack);
        if ends {
            self.stage = Stage::Idle;
        }
        ends
    }

    /// Nobody waits for what was being looked at.
    pub(super) fn drop_check(&mut self) -> Option<u64> {
        let Stage::Checking { check, asked } = &self.stage else {
            return None;
        };
        check.kill();
        let seq = asked.seq;
        self.stage = Stage::Idle;
        seq
    }

    /// The binary that is installed by now, being looked at.
    fn check(&self, now: u64) -> Result<Check, UpgradeRefusal> {
        let path = self.path.as_ref().map_err(|why| UpgradeRefusal::Unfit {
            binary: String::new(),
            why: format!("where the binary of this service is installed is not known: {why}"),
            speaks: None,
        })?;
        let begun = Binary::at(path).and_then(|binary| Check::begin(binary, &self.env, now));
        begun.map_err(|error| UpgradeRefusal::Unfit {
            binary: path.display().to_string(),
            why: format!("it cannot be executed: {error}"),
            speaks: None,
        })
    }

    fn unfit(&self, unfit: Unfit) -> UpgradeRefusal {
        let path = self.path.as_ref().map(|path| path.display().to_string());
        UpgradeRefusal::Unfit {
            binary: path.unwrap_or_default(),
            why: unfit.why,
            speaks: unfit.speaks,
        }
    }
}

impl Keeper {
    /// `seq` absent: a signal asked for it.
    pub(super) fn begin_upgrade(&mut self, seq: Option<u64>, request_id: Option<String>) {
        let known = self.upgrades.last.as_ref();
        let known = known.filter(|last| request_id.is_some() && last.request_id == request_id);
        if let (Some(seq), Some(last)) = (seq, known) {
            let last = last.clone();
            return self.answer(seq, Answer::Upgrade(Ok(last)));
        }
        let asked = Asked { seq, request_id };
        if self.ending.asked {
            return self.refuse_upgrade(&asked, UpgradeRefusal::ShuttingDown);
        }
        let begins = self.server.ready_at.is_none();
        if begins || !matches!(self.upgrades.stage, Stage::Idle) {
            return self.refuse_upgrade(&asked, UpgradeRefusal::UnderWay);
        }
        match self.upgrades.check(clock::boot_ms()) {
            Ok(check) => {
                let check = Box::new(check);
                self.upgrades.stage = Stage::Checking { check, asked };
            }
            Err(refusal) => self.refuse_upgrade(&asked, refusal),
        }
    }

    fn refuse_upgrade(&mut self, asked: &Asked, refusal: UpgradeRefusal) {
        match asked.seq {
            Some(seq) => self.answer(seq, Answer::Upgrade(Err(refusal))),
            None => self.send(&ToServer::NotUpgraded(refusal), Vec::new()),
        }
    }

    /// The binary has said what it is, or not.
    pub(super) fn checked(&mut self, exit: Exit) {
        let Stage::Checking { check, asked } = mem::replace(&mut self.upgrades.stage, Stage::Idle)
        else {
            return;
        };
        let next = match check.end(exit) {
            Ok(next) => next,
            Err(unfit) => {
                let refusal = self.upgrades.unfit(unfit);
                return self.refuse_upgrade(&asked, refusal);
            }
        };
        crash_point!("keeper.upgrade_checked");
        let upgrade = Upgrade {
            request_id: asked.request_id.clone(),
            at: clock::wall(),
            from_version: self.upgrades.binary.version.clone(),
            to_version: next.version.clone(),
            state: UpgradeState::Leaving,
        };
        self.upgrades.last = Some(upgrade.clone());
        self.upgrades.stage = Stage::Leaving { next };
        if let Some(seq) = asked.seq {
            self.answer(seq, Answer::Upgrade(Ok(upgrade)));
        }
        self.server.kill_at = Some(clock::boot_ms() + millis(LEAVE_MAX));
        self.send(&ToServer::Leave, Vec::new());
        crash_point!("keeper.leave_sent");
    }

    pub(super) fn look_after_upgrade(&mut self, now: u64) {
        if let Stage::Checking { check, .. } = &mut self.upgrades.stage
            && now >= check.by
        {
            check.give_up();
        }
    }

    /// A look at a binary that nobody waits for any more: the service ends, or its server is lost.
    pub(super) fn cancel_check(&mut self) {
        if let Some(seq) = self.upgrades.drop_check() {
            let refusal = UpgradeRefusal::ShuttingDown;
            self.answer(seq, Answer::Upgrade(Err(refusal)));
        }
    }

    /// The server has been reaped in the middle of an upgrade: the next one is started at once, from whichever binary.
    /// `false`: there is none to try.
    pub(super) fn go_on_with_upgrade(&mut self, how: &str, now: u64) -> bool {
        match mem::replace(&mut self.upgrades.stage, Stage::Idle) {
            Stage::Leaving { next } => {
                crash_point!("keeper.left");
                let former = mem::replace(&mut self.upgrades.binary, next);
                self.set_upgrade_state(UpgradeState::Done);
                self.upgrades.stage = Stage::Starting { former };
            }
            Stage::Starting { former } => {
                self.upgrades.binary = former;
                let why = format!("the new server {how}");
                self.set_upgrade_state(UpgradeState::FellBack(why));
                self.upgrades.stage = Stage::FallingBack;
            }
            // As any other that was lost, from now on.
            Stage::FallingBack => {
                self.restarts.lost_only_now(now);
                return false;
            }
            other @ (Stage::Idle | Stage::Checking { .. }) => {
                self.upgrades.stage = other;
                return false;
            }
        }
        self.restarts.at_once(now);
        true
    }

    fn set_upgrade_state(&mut self, state: UpgradeState) {
        if let Some(last) = &mut self.upgrades.last {
            last.state = state;
        }
    }

    /// What a server that was started in the middle of an upgrade has to keep to.
    pub(super) fn bound_new_server(&mut self, now: u64) {
        if self.upgrades.is_between_servers() {
            self.server.kill_at = Some(now + millis(READY_MAX));
        }
    }

    /// Whether it ended as it was asked to.
    pub(super) fn has_left(&self) -> bool {
        self.upgrades.is_leaving() && self.server.exit == Some(Exit::Code(CODE_LEFT))
    }
}
