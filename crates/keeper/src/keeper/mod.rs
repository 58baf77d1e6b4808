//! The keeper: `kennel serve` itself. Single-threaded; starts before any runtime or thread.
//!
//! It owns every run's shim, gate, signals, stop ladder and control group, the listening sockets and the lock of the
//! data directory. It never reads output and never decides: the server sends the commands.

mod adoption;
mod binary;
mod check;
mod data_dir;
mod delegation;
mod group_record;
mod groups;
mod leftovers;
mod listen;
mod main_loop;
mod memory_reserve;
mod observe;
mod orphan;
mod passed;
mod pause;
mod pool;
mod probe;
mod reaping;
mod reconnect;
mod run;
mod server;
mod service_manager;
mod serving;
mod stray;

pub use data_dir::node_id;
pub use group_record::remove_groups;
pub use service_manager::ServiceManager;

use crate::{
    detached,
    exit_slots::ExitSlots,
    notify_place,
    values::KeeperHello,
    wire::versions::{Versions, WIRE},
};
use groups::RunGroups;
use kennel_lifecycle::{DefaultLimits, HostFacts, LimitPowers, Resource, Rlimit};
use kennel_linux::{
    attributes::{self, Inherited, PrivatePlaces, Protection},
    capability::{Capability, CapabilityName},
    clock, crash_point, identity, memory_room,
    signal_set::SignalSet,
};
use listen::Listening;
pub use listen::address::ListenAddress;
use main_loop::{Keeper, LoopParts, Restarts, Upgrades};
use memory_reserve::MemoryReserve;
use nix::sys::{
    prctl,
    signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction},
    signalfd::SignalFd,
    stat::{Mode, umask},
};
use passed::PassedSockets;
use reconnect::ReconnectSockets;
use server::Server;
use service_manager::Notifier;
use serving::Serving;
use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

/// Version of this very binary.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Processes of a tree that are read, stopped or signalled in one slice: 1 to 3 ms.
const SLICE_PROCESSES: usize = 32;
/// Most bytes of the paths that a sandbox closes beside the data directory.
const PRIVATE_BYTES_MAX: usize = 8 * 1024;

/// Configuration of the keeper, from the command line.
#[derive(Clone, Debug)]
pub struct KeeperConfig {
    /// Directory of the lock, the node's id and the runs' directories; made 0700 if it is missing.
    pub data_dir: PathBuf,
    /// Listen addresses. The directory of a unix socket is made if it is missing, 0700, or 0711 where the socket is
    /// open to others; a stale socket file is replaced only when no process listens on it.
    pub listen: Vec<ListenAddress>,
    /// Names of the listening sockets that a service manager has passed, from descriptor 3 on. Each is used for the
    /// address in `listen` that it is bound to.
    pub passed_sockets: Vec<String>,
    /// Arguments (after the program's name) with which this binary is executed again as the server.
    pub server_argv: Vec<OsString>,
    /// Whether runs get control groups.
    pub cgroup: CgroupChoice,
    /// The whole environment of a binary that is checked before a server is started from it.
    pub preflight_env: Vec<(String, String)>,
    /// Time for which runs continue without any server; then each is ended by its own plan.
    pub orphan_ttl: Duration,
    /// Whole time of a shutdown, the graces of all runs included.
    pub shutdown_timeout: Duration,
    /// Bytes that stay free below the memory limit of its own control group and of those above; absent: no such reserve.
    pub memory_reserve: Option<u64>,
    /// Limits of runs whose spec has none.
    pub default_limits: DefaultLimits,
    /// Is notified that the service is ready, is ending, or is alive.
    pub service_manager: ServiceManager,
    /// Files and directories beside the data directory that no command in a sandbox reaches, such as those of keys.
    pub private: Vec<PathBuf>,
}

impl KeeperConfig {
    /// Returns what a sandbox closes; an error: the paths are too long.
    fn private_places(&self, has_mounts: bool) -> io::Result<PrivatePlaces> {
        let sockets = self.listen.iter().filter_map(|address| match address {
            ListenAddress::Unix { path, .. } => Some(path.into()),
            ListenAddress::Tcp(_) => None,
        });
        let places = PrivatePlaces {
            run_dir: String::new(),
            closed: self.private.iter().map(Into::into).collect(),
            sockets: sockets.collect(),
            has_mounts,
        };
        let paths = places.closed.iter().chain(&places.sockets);
        let bytes: usize = paths.map(|path| path.len()).sum();
        if bytes > PRIVATE_BYTES_MAX {
            let why = format!("they have {bytes} bytes, and at most {PRIVATE_BYTES_MAX} fit");
            return Err(io::Error::new(io::ErrorKind::ArgumentListTooLong, why));
        }
        Ok(places)
    }
}

/// Whether runs get control groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CgroupChoice {
    /// Where cgroup v2 is writable and the start-up probe passes. In a delegated group the keeper moves to a leaf, so
    /// that runs can have limits.
    #[default]
    Auto,
    /// As `Auto`, but the keeper stays in the group that it was started in: runs have no limits as a whole.
    Stay,
    /// Never.
    Off,
}

/// Reason why the keeper did not start.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// Another keeper holds the data directory.
    #[error("{} is in use by process {}", dir.display(), holder.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string()))]
    LockBusy {
        /// The data directory.
        dir: PathBuf,
        /// The holder, as it wrote itself into the lock file.
        holder: Option<i32>,
    },
    /// The data directory cannot be used.
    #[error("cannot use the data directory: {}", path.display())]
    DataDir {
        /// The path that was tried.
        path: PathBuf,
        /// Error of the attempt.
        #[source]
        source: io::Error,
    },
    /// A listening socket cannot be made.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: ListenAddress,
        /// Error of the attempt; `AddrInUse` where another process listens there.
        #[source]
        source: io::Error,
    },
    /// A socket that the service manager passed cannot be used.
    #[error("cannot use socket {name:?} of the service manager")]
    PassedSocket {
        /// Its name (`FileDescriptorName=` in the unit of the socket).
        name: String,
        /// Reason.
        #[source]
        source: io::Error,
    },
    /// A memory limit is too low for the memory reserve.
    #[error(
        "the memory reserve of {bytes} bytes is more than half of a memory limit of {limit} bytes that this process has"
    )]
    MemoryReserve {
        /// The reserve.
        bytes: u64,
        /// The lowest limit of its control group and of those above.
        limit: u64,
    },
    /// This host cannot hold limits that runs are to have.
    #[error("this host cannot hold the default limits: it lacks {}", .0.join(", "))]
    DefaultLimits(Vec<String>),
    /// Its own limits would end it.
    #[error("this process has {0}, which would stop the service")]
    HardLimit(String),
    /// The server process cannot be started.
    #[error("cannot start the server process")]
    Server(#[source] io::Error),
    /// A call that every Linux host should allow has failed.
    #[error("cannot {step}")]
    Host {
        /// The step that was tried.
        step: &'static str,
        /// Error of the attempt.
        #[source]
        source: io::Error,
    },
}

impl KeeperError {
    /// Returns the exit code: 2 where the caller can fix it, otherwise 1.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::LockBusy { .. }
            | Self::DataDir { .. }
            | Self::Listen { .. }
            | Self::PassedSocket { .. }
            | Self::MemoryReserve { .. }
            | Self::DefaultLimits(_)
            | Self::HardLimit(_) => 2,
            Self::Server(_) | Self::Host { .. } => 1,
        }
    }
}

/// Runs the keeper until the server has ended and every run with it, and returns the exit code: 0; 1 where a process
/// was still alive at the deadline of the shutdown; 70 where the service ended without a server. Call it before any
/// runtime or thread: it forks.
pub fn run(config: &KeeperConfig) -> Result<i32, KeeperError> {
    let host = |step| move |source: io::Error| KeeperError::Host { step, source };
    #[cfg(debug_assertions)]
    kennel_linux::crash_point::i_am_keeper();
    let mut passed = PassedSockets::take(&config.passed_sockets)?;
    // Read while the binary still has this path: an upgrade starts the file that replaces it.
    let own_path = std::fs::read_link("/proc/self/exe");
    let mut protection = Protection::take().map_err(host("read oom_score_adj"))?;
    prctl::set_dumpable(false).map_err(|e| host("make this process undumpable")(e.into()))?;
    prctl::set_child_subreaper(true).map_err(|e| host("become a subreaper")(e.into()))?;
    check_proc().map_err(host("use /proc, which is not of this pid namespace"))?;
    // The umask of keeper and servers; a shim sets that of its command.
    umask(Mode::from_bits_truncate(0o077));
    data_dir::create(&config.data_dir)?;
    let _lock = data_dir::lock(&config.data_dir)?;
    detached::sweep(&config.data_dir);
    let node = data_dir::node_id(&config.data_dir)?;
    let epoch = data_dir::new_epoch().map_err(host("draw a name for this keeper"))?;
    let raised = raise_limits()?;
    let listening = config.listen.iter();
    let listening = listening.map(|address| Listening::new(address, &mut passed));
    let listening = listening.collect::<Result<Vec<_>, _>>()?;
    passed.all_claimed()?;
    let signals = take_signals().map_err(host("take signals over"))?;
    let here = identity::host().map_err(host("read the identity of this host"))?;
    let own = identity::own().map_err(host("read the identity of this process"))?;
    let groups = RunGroups::new(config.cgroup, node, epoch, &config.data_dir);
    let powers = attributes::powers(groups.knobs()).map_err(host("try its own limits"))?;
    let oom_score_adj = protection.shared_out(powers.oom_score_adj_min.is_some());
    let inherited = Inherited::take(raised, oom_score_adj).map_err(host("read its own limits"))?;
    let memory_reserve = reserve(config, &groups).inspect_err(|_| groups.remove())?;
    can_hold(config, &powers).inspect_err(|_| groups.remove())?;
    let sockets = ReconnectSockets::open(&config.data_dir);
    let serving = Serving::take(&config.data_dir, epoch)?;
    let reserve = memory_reserve.as_ref();
    let capabilities = capabilities(&groups, &sockets, &powers, reserve, &config.data_dir)?;
    let (facts, private) = of_commands(config, &groups, &capabilities)?;
    let kernel =
        nix::sys::utsname::uname().map_err(|e| host("ask for the kernel's name")(e.into()))?;
    let hello = KeeperHello {
        speaks: WIRE,
        knows: Versions::of_keeper().knows,
        epoch,
        powers,
        pidfs: own.pidfs_handle.is_some(),
        keeper: own,
        host: here.clone(),
        cgroup_base: groups
            .base()
            .as_ref()
            // Paths in messages are UTF-8.
            .map(|base| base.display().to_string().into())
            .map_err(Clone::clone),
        kernel: kernel.release().to_string_lossy().into_owned(),
        capabilities,
        late: Vec::new(),
        restarts: 0,
        version: VERSION.to_owned(),
        former: None,
        upgrade: None,
    };
    if sockets.all().is_empty() {
        serving.has_others();
    } else {
        serving.await_others()?;
    }
    let (found, late) = adoption::collect(&sockets, &config.data_dir, &here);
    crash_point!("keeper.shims_asked");
    notify_place::sweep(node, |run| {
        found.iter().any(|found| found.id == run) || late.iter().any(|awaited| awaited.run == run)
    });
    let argv = &config.server_argv;
    let upgrades = Upgrades::new(own_path, config.preflight_env.clone());
    let server = Server::start(upgrades.binary(), argv, serving.lock());
    let server = server.map_err(KeeperError::Server)?;
    let mut keeper = Keeper::new(LoopParts {
        server,
        restarts: Restarts::new(argv.clone(), serving, hello, config.orphan_ttl),
        upgrades,
        signals,
        listening,
        facts,
        private,
        groups,
        host: here,
        data_dir: config.data_dir.clone(),
        node,
        inherited,
        protection,
        sockets,
        notifier: Notifier::new(&config.service_manager, clock::boot_ms()),
        exits: ExitSlots::open(&config.data_dir, epoch.to_string()),
        memory_reserve,
        shutdown_timeout: config.shutdown_timeout,
    })?;
    keeper.settle_exits();
    for run in found {
        keeper.adopt(run);
    }
    for awaited in late {
        keeper.await_shim(awaited);
    }
    crash_point!("keeper.adopted");
    keeper.run().map_err(host("wait for events"))
}

/// Raises this process's soft limits and returns those of before. Refuses hard ones under which it would be killed.
fn raise_limits() -> Result<Vec<Rlimit>, KeeperError> {
    let host = |step| move |source: io::Error| KeeperError::Host { step, source };
    let raised = attributes::raise_own_limits().map_err(host("raise its own limits"))?;
    let fatal = [Resource::FileSize, Resource::Cpu];
    let unlimited = attributes::has_no_hard_limit(&fatal).map_err(host("read its own limits"))?;
    unlimited.map_err(KeeperError::HardLimit)?;
    Ok(raised)
}

/// Refuses limits of the node that this host cannot hold.
fn can_hold(config: &KeeperConfig, powers: &LimitPowers) -> Result<(), KeeperError> {
    let lacking = config.default_limits.missing(powers);
    if lacking.is_empty() {
        Ok(())
    } else {
        Err(KeeperError::DefaultLimits(lacking))
    }
}

/// Finds out what this host can do for runs.
fn capabilities(
    groups: &RunGroups,
    sockets: &ReconnectSockets,
    powers: &LimitPowers,
    memory_reserve: Option<&MemoryReserve>,
    data_dir: &Path,
) -> Result<Vec<Capability>, KeeperError> {
    let host = |step| move |source: io::Error| KeeperError::Host { step, source };
    let mut capabilities = groups.capabilities().to_vec();
    capabilities.extend(probe::processes().map_err(host("try out what this kernel can do"))?);
    capabilities.push(sockets.capability());
    let oom_order = attributes::oom_order(powers);
    capabilities.push(Capability::tried(CapabilityName::OomOrder, oom_order));
    let reserved = reserved(memory_reserve);
    capabilities.push(Capability::tried(CapabilityName::MemoryReserve, reserved));
    let memory = attributes::has_no_hard_limit(&[Resource::AddressSpace, Resource::Data]);
    let memory = memory.map_err(host("read its own limits"))?;
    capabilities.push(Capability::tried(CapabilityName::UnlimitedMemory, memory));
    let run_as = probe::run_as().map_err(host("read its own capabilities"))?;
    capabilities.push(Capability::tried(CapabilityName::RunAs, run_as));
    let dropped = probe::drop_capabilities().map_err(host("read its own capabilities"))?;
    capabilities.push(Capability::tried(CapabilityName::DropCapabilities, dropped));
    let profiles = probe::profiles(data_dir);
    capabilities.extend(profiles.map_err(host("try out what this kernel can do"))?);
    Ok(capabilities)
}

/// Finds out what commands may do on a host with these capabilities, and what a sandbox closes to them.
fn of_commands(
    config: &KeeperConfig,
    groups: &RunGroups,
    capabilities: &[Capability],
) -> Result<(HostFacts, PrivatePlaces), KeeperError> {
    let host = |step| move |source: io::Error| KeeperError::Host { step, source };
    let facts = probe::facts(groups, capabilities);
    let facts = facts.map_err(host("find out what commands may do"))?;
    let private = config.private_places(facts.sandbox_has_mounts);
    let private = private.map_err(host("close the paths of secrets and sockets to sandboxes"))?;
    Ok((facts, private))
}

/// Returns the reserve of the configuration. One that can never be kept is refused, and so is one for which a limit is
/// too low.
fn reserve(
    config: &KeeperConfig,
    groups: &RunGroups,
) -> Result<Option<MemoryReserve>, KeeperError> {
    let Some(bytes) = config.memory_reserve else {
        return Ok(None);
    };
    let shared = groups.shared();
    let above = shared.map_or_else(Vec::new, |group| memory_room::and_above(&group));
    let reserve = MemoryReserve::new(bytes, above);
    if !reserve.can_be_kept() {
        let why = "no control group of this process has the memory controller of cgroup v2";
        return Err(KeeperError::Host {
            step: "keep a memory reserve",
            source: io::Error::other(why),
        });
    }
    if let Some(limit) = reserve.unfit_limit() {
        return Err(KeeperError::MemoryReserve { bytes, limit });
    }
    Ok(Some(reserve))
}

/// Says why no reserve is kept, where none is.
fn reserved(reserve: Option<&MemoryReserve>) -> Result<(), String> {
    match reserve {
        None => Err("--memory-reserve is not set".into()),
        Some(reserve) if reserve.has_limit() => Ok(()),
        Some(_) => Err("no control group of this process has a memory limit at present".into()),
    }
}

/// Checks that /proc shows the pids that system calls use, since all checks here go by them. In the /proc of another
/// pid namespace they are those of unrelated processes.
fn check_proc() -> io::Result<()> {
    let link = std::fs::read_link("/proc/self")?;
    let own = std::process::id().to_string();
    if link.as_os_str() == own.as_str() {
        return Ok(());
    }
    let link = link.display();
    let why = format!("it shows this process as {link}, and its number is {own}");
    Err(io::Error::other(why))
}

/// Turns signals into messages to the loop.
fn take_signals() -> io::Result<SignalFd> {
    // The parent may have passed on an ignored SIGCHLD: the kernel would then discard exits.
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: no handler is set that could run unsafe code; the replaced action is not used.
    unsafe { sigaction(Signal::SIGCHLD, &default) }?;
    // Signals without meaning here are blocked too: by default they would kill this process, and end every run with it.
    let signals = SignalSet::of_others();
    // Computed once here, so that no shim has to.
    SignalSet::ignored();
    signals.block()?;
    signals.descriptor()
}
