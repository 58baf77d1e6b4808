//! The values that keeper, shims and server exchange, each with one form for all three.

mod announced;
mod extended;
mod former;
mod handover;
mod helper;
mod input;
mod interrupt;
mod inventory;
mod levels;
mod notified;
mod outputs;
mod recorded;
mod report;
mod stray;
mod upgrade;
mod victim;

pub use announced::{KeeperEvent, KeeperHello, KeeperReport, SkippedBy};
pub use extended::{ExtendResult, Extended};
pub use former::{EndCause, FormerServer};
pub use handover::{HeldPause, HeldRun};
pub use helper::HelperEnd;
pub use input::{InputResult, InputState};
pub use interrupt::InterruptWay;
pub use inventory::{KeeperInventory, SocketSeen};
pub use levels::Levels;
pub use notified::Notified;
pub use outputs::{Outputs, TerminalEnds};
pub use recorded::Recorded;
pub use report::{Fact, SignalResult, SignalledProcesses, Unstopped};
pub use stray::StraySignal;
pub use upgrade::{Upgrade, UpgradeRefusal, UpgradeState};
pub use victim::{Fate, Holding, Reaped, Victim};
