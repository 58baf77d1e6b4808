//! Texts for the contract's enums and unions, for people.

use crate::values;
use kennel_proto::pb;
use std::{collections::HashMap, sync::LazyLock, time::Duration};

/// Values of enums by their names in the contract, each with its words; none where there is nothing to say.
static WORDS: LazyLock<HashMap<&str, &str>> = LazyLock::new(|| {
    let lines = include_str!("words.txt").lines();
    lines
        .map(|line| line.split_once(' ').unwrap_or((line, "")))
        .collect()
});

/// Returns the words for a value of an enum.
pub(crate) fn word(name: &str) -> &'static str {
    WORDS
        .get(name)
        .copied()
        .unwrap_or("unknown to this version of kennel")
}

/// Returns the words for a value of an enum, where it has some.
fn some_word(name: &str) -> Option<&'static str> {
    Some(word(name)).filter(|word| !word.is_empty())
}

/// Formats `1000:100`, and the supplementary groups.
pub(crate) fn user(user: &pb::RunUser) -> String {
    let group = user.group_id.unwrap_or(user.user_id);
    let groups = user
        .supplementary_group_ids
        .iter()
        .map(|id| format!(" +{id}"));
    format!("{}:{group}{}", user.user_id, groups.collect::<String>())
}

/// Lists the restrictions of the command, a line each.
pub(crate) fn held_back(privileges: &pb::Privileges) -> Vec<String> {
    let gains = privileges.no_new_privileges;
    let mut lines: Vec<String> = gains
        .then(|| "no new ones".to_owned())
        .into_iter()
        .collect();
    if !privileges.drop_capabilities.is_empty() {
        lines.push(format!(
            "without {}",
            privileges.drop_capabilities.join(", ")
        ));
    }
    if let Some(sandbox) = &privileges.sandbox {
        let paths = |word: &str, paths: &[String]| match paths {
            [] => String::new(),
            _ => format!(", {word} {}", paths.join(" ")),
        };
        let reads = paths("reads", &sandbox.readable_paths);
        let writes = paths("writes", &sandbox.writable_paths);
        lines.push(format!("sandbox{reads}{writes}"));
    }
    if privileges.seccomp_profile() == pb::SeccompProfile::Baseline {
        lines.push("seccomp baseline".to_owned());
    }
    if privileges.network() == pb::Network::None {
        lines.push("no network".to_owned());
    }
    lines
}

/// Returns the state as the contract spells it, without prefix: `RUNNING`.
pub(crate) fn state(state: pb::RunState) -> String {
    let name = state.as_str_name();
    name.strip_prefix("RUN_STATE_").unwrap_or(name).to_owned()
}

/// Returns whether a reader uses a consumer's name.
pub(crate) fn consumer_state(state: pb::ConsumerState) -> String {
    bare(state.as_str_name(), "CONSUMER_STATE_")
}

/// Formats what pins a run, and since when.
pub(super) fn pinned(pinned: &pb::PinnedRun) -> String {
    let since = pinned
        .since
        .map_or_else(String::new, |since| format!(", since {since}"));
    format!("{}{since}", pinned.by)
}

/// Describes a stop that is left for a node.
pub(super) fn left_stop(stop: &pb::LeftStop) -> String {
    let since = stop
        .leave_time
        .map_or_else(String::new, |time| format!(" at {time}"));
    let grace = stop.grace.and_then(|grace| Duration::try_from(grace).ok());
    let grace = grace.map_or_else(String::new, |grace| format!(", grace {grace:?}"));
    format!(
        "by {}{since}{grace}; not done before the node is back",
        stop.by
    )
}

/// Returns whether a node has reported lately.
pub(crate) fn reachability(reachability: pb::NodeReachability) -> String {
    bare(reachability.as_str_name(), "NODE_REACHABILITY_")
}

/// Returns a time in whole milliseconds.
pub(crate) fn millis(time: impl TryInto<Duration>) -> Option<Duration> {
    let time: Duration = time.try_into().ok()?;
    u64::try_from(time.as_millis())
        .ok()
        .map(Duration::from_millis)
}

/// Formats a limit of time, its end and its extension.
pub(crate) fn time_limit(limit: &pb::TimeLimit) -> String {
    let name = word(limit.limit().as_str_name());
    let end = match (limit.end_time, limit.limit()) {
        (Some(at), pb::Deadline::Inactivity) => format!(" not before {at}"),
        (Some(at), _) => format!(" at {at}"),
        (None, _) => String::new(),
    };
    let extended = limit.extended.and_then(millis);
    let extended = extended.map_or_else(String::new, |by| format!(", extended by {by:?}"));
    format!("{name}{end}{extended}")
}

/// Formats the event of an extension.
pub(crate) fn extended(extended: &pb::lifecycle::Extended) -> String {
    let total = extended.total.and_then(millis);
    let total = total.map_or_else(String::new, |by| format!(" by {by:?} in all"));
    let by = match extended.by.as_str() {
        "" => String::new(),
        by => format!(", by {by}"),
    };
    let name = word(extended.limit().as_str_name());
    format!("{name} extended{total}{by}")
}

/// Formats the number of live runs in each state; `none` where there is none.
pub(crate) fn live_runs(info: &pb::ServerInfo, none: &str) -> String {
    let counts = info.live_runs.iter();
    let counts: Vec<String> = counts
        .map(|live| format!("{} {}", live.count, state(live.state())))
        .collect();
    match &counts[..] {
        [] => none.to_owned(),
        counts => counts.join(", "),
    }
}

/// Formats the size of a terminal, as `resize` takes it.
pub(crate) fn terminal_size(size: pb::TerminalSize) -> String {
    format!("{}x{}", size.rows, size.cols)
}

pub(crate) fn kind(kind: pb::RunKind) -> String {
    bare(kind.as_str_name(), "RUN_KIND_")
}

/// Describes the containment.
pub fn containment(containment: pb::Containment) -> &'static str {
    word(containment.as_str_name())
}

/// Describes missing entries, and the reason.
pub(crate) fn gap(gap: &pb::Gap) -> String {
    let missing = gap.missing.iter().filter(|m| m.bytes != Some(0));
    let missing: Vec<String> = missing
        .map(|m| {
            let bytes = m
                .bytes
                .map_or("an unknown number of".into(), |n| n.to_string());
            format!("{bytes} bytes of {}", stream(m.stream()))
        })
        .collect();
    let why = word(gap.reason().as_str_name());
    let what = if missing.is_empty() {
        "no output".into()
    } else {
        missing.join(" and ")
    };
    let (first, last) = (gap.first_seq, gap.last_seq);
    format!("missing: {what} (events {first} to {last}: {why})")
}

pub(crate) fn stream(stream: pb::OutputStream) -> &'static str {
    match stream {
        pb::OutputStream::Stdout => "stdout",
        pb::OutputStream::Stderr => "stderr",
        pb::OutputStream::Unspecified => "output",
    }
}

/// Describes the retained output, where the spec sets it.
pub(crate) fn kept_output(policy: pb::OutputPolicy) -> Option<String> {
    let bytes = policy.max_bytes.map(|bytes| format!("{bytes} bytes"));
    let full = some_word(policy.on_full().as_str_name());
    let disk = some_word(policy.on_disk_full().as_str_name());
    let said = bytes.into_iter();
    let said = said.chain([full, disk].into_iter().flatten().map(str::to_owned));
    let said: Vec<String> = said.collect();
    (!said.is_empty()).then(|| said.join(", "))
}

/// Describes the policy for the rest when a leader exits by itself, unless it is the default.
pub(crate) fn on_leader_exit(policy: pb::LeaderExitPolicy) -> Option<String> {
    let word = some_word(policy.action().as_str_name())?;
    let most = policy
        .drain_timeout
        .and_then(|t| Duration::try_from(t).ok());
    let most = most.map_or_else(String::new, |t| format!(", for at most {t:?}"));
    Some(format!("{word}{most}"))
}

/// What processes of a run may call, unless that is nothing.
pub(crate) fn api_access(access: pb::ApiAccess) -> Option<&'static str> {
    some_word(access.as_str_name())
}

pub(crate) fn evidence(evidence: pb::LeakEvidence) -> String {
    bare(evidence.as_str_name(), "LEAK_EVIDENCE_")
}

fn bare(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix)
        .unwrap_or(name)
        .to_lowercase()
        .replace('_', "-")
}

pub(crate) fn exit(exit: &pb::Exit) -> String {
    match &exit.result {
        Some(pb::exit::Result::Code(code)) => format!("code {code}"),
        Some(pb::exit::Result::Signal(signal)) => {
            let core = values::only_if(exit.core_dumped, ", core dumped");
            format!("signal {} ({}){core}", signal.name, signal.number)
        }
        Some(pb::exit::Result::Unknown(_)) | None => "unknown".to_owned(),
    }
}

/// Describes the end of the server before this one.
pub(crate) fn former(former: &pb::FormerServer) -> String {
    let when = former.end_time;
    let when = when.map_or_else(String::new, |at| format!(" at {at}"));
    let how = former.exit.as_ref().map(|exit| match &exit.result {
        Some(pb::exit::Result::Code(code)) => format!("exited with code {code}"),
        Some(pb::exit::Result::Signal(signal)) => format!("killed by {}", signal.name),
        Some(pb::exit::Result::Unknown(_)) | None => "ended, how is not known".to_owned(),
    });
    let how = match former.cause() {
        pb::ServerEndCause::Hung => "hung, and was killed by the keeper".to_owned(),
        pb::ServerEndCause::Late => "did not end in time, and was killed by the keeper".to_owned(),
        pb::ServerEndCause::Upgrade => {
            return format!("kennel {}, made room for an upgrade{when}", former.version);
        }
        pb::ServerEndCause::ByItself | pb::ServerEndCause::Unspecified => how.unwrap_or_default(),
    };
    let served = values::only_if(!former.served, " before it served");
    format!("kennel {}, {how}{served}{when}", former.version)
}

/// Describes the result of an upgrade.
pub(crate) fn upgrade(upgrade: &pb::Upgrade) -> String {
    let how = match upgrade.state() {
        pb::UpgradeState::Done => "done".to_owned(),
        pb::UpgradeState::FellBack => format!("FELL BACK: {}", upgrade.why),
        pb::UpgradeState::Leaving | pb::UpgradeState::Unspecified => "under way".to_owned(),
    };
    let when = upgrade.start_time.map(|at| format!(" at {at}"));
    format!(
        "from kennel {} to {}{}, {how}",
        upgrade.from_version,
        upgrade.to_version,
        when.unwrap_or_default()
    )
}

/// Describes the limit of a pause, and its action.
pub(crate) fn max_pause(policy: pb::PausePolicy) -> Option<String> {
    let max = Duration::try_from(policy.max_pause?).ok()?;
    let then = word(policy.on_max_pause().as_str_name());
    Some(format!("{max:?}, then {then}"))
}

pub(crate) fn end_reason(reason: &pb::EndReason) -> String {
    use pb::end_reason::Reason;
    match &reason.reason {
        Some(Reason::Exited(_)) => "exited".to_owned(),
        Some(Reason::SuccessExit(_)) => "exited with a code that counts as success".to_owned(),
        Some(Reason::Restarted(r)) => format!("to be started again, asked by {}", r.by),
        Some(Reason::RestartsExhausted(e)) => {
            format!("ended again after {} restarts in a row", e.restarts)
        }
        Some(Reason::Aborted(a)) => format!("aborted by {}", a.by),
        Some(Reason::StartFailed(f)) => {
            let stage = bare(f.stage().as_str_name(), "START_STAGE_");
            let path = f.path.as_ref().map(|p| format!(" of {p}"));
            let errno = f.error_number.map(|e| format!(": {}", errno(e)));
            format!(
                "start failed at {stage}{}{}",
                path.unwrap_or_default(),
                errno.unwrap_or_default()
            )
        }
        Some(Reason::Fenced(f)) => format!("aborted by {} before it was spawned", f.by),
        Some(Reason::ParentEnded(_)) => {
            "the run that it belongs to has ended (parent_ended)".to_owned()
        }
        Some(Reason::ServerShutdown(_)) => "the service shut down".to_owned(),
        Some(Reason::ServiceLost(_)) => "it ended while the service was down".to_owned(),
        Some(Reason::Rebooted(_)) => "the host started anew".to_owned(),
        Some(Reason::OrphanTerminated(_)) => {
            "the service had died, and the run could not be continued".to_owned()
        }
        Some(Reason::NodeForgotten(f)) => {
            format!("{} has forgotten its node, which was unreachable", f.by)
        }
        Some(Reason::ShimLost(_)) => "Kennel lost the run's shim and ended the run".to_owned(),
        Some(Reason::DeadlineExceeded(d)) => {
            word(&format!("EXCEEDED_{}", d.which().as_str_name())).to_owned()
        }
        Some(Reason::NotReady(_)) => "it was not ready in time (not_ready)".to_owned(),
        Some(Reason::NotLive(n)) => format!(
            "{} probes of its liveness failed in a row: {} (not_live)",
            n.failures, n.error
        ),
        Some(Reason::Watchdog(watchdog)) if watchdog.triggered => {
            "its command reported that it does not work (watchdog)".to_owned()
        }
        Some(Reason::Watchdog(_)) => "its command gave no sign in its time (watchdog)".to_owned(),
        Some(Reason::Result(r)) => {
            format!(
                "its result was there, and it was stopped (result, rule {})",
                r.rule
            )
        }
        Some(Reason::LimitExceeded(l)) => word(l.limit().as_str_name()).to_owned(),
        Some(Reason::OomKilled(killed)) => oom_killed(killed),
        Some(Reason::MemoryReserve(short)) => format!(
            "it was the largest run when the memory of its node was short: {} of {} bytes used, {} reserved (memory_reserve)",
            short.used_bytes, short.limit_bytes, short.reserve_bytes
        ),
        None => "unknown to this version of kennel".to_owned(),
    }
}

/// Formats `the kernel killed it for lack of memory (2 processes; limit 64 MiB)`.
pub(crate) fn oom_killed(killed: &pb::end_reason::OomKilled) -> String {
    let processes = values::counted(killed.kills, "process", "processes");
    let limit = killed.memory_max_bytes;
    let limit = limit.map(|bytes| format!("; memory limit {bytes} bytes"));
    format!(
        "the kernel killed it for lack of memory ({processes}{})",
        limit.unwrap_or_default()
    )
}

/// Formats `5 of 5 bytes written to standard input`.
pub(crate) fn stop_input(input: &pb::StopInput) -> String {
    match input.bytes {
        Some(bytes) => format!(
            "{} of {bytes} bytes written to standard input",
            input.written
        ),
        None => "standard input closed".to_owned(),
    }
}

/// Describes a command of a stop, and its exit.
pub(crate) fn stop_command(command: &pb::StopCommand) -> String {
    use pb::stop_command::End;
    let end = match &command.end {
        Some(End::Exited(how)) => exit(how),
        Some(End::TimedOut(_)) => "took too long, and was ended".to_owned(),
        Some(End::NotStarted(failed)) => match failed.error_number {
            Some(number) => format!("did not start: {}", errno(number)),
            None => "did not start".to_owned(),
        },
        Some(End::CutOff(_)) => "ended with the run".to_owned(),
        None => "ended in a way that this client does not know".to_owned(),
    };
    format!("{}: {end}", crate::terminal_text::one_line(&command.name))
}

/// Formats `SIGKILL by cgroup.kill: 3 reached, 1 gone`.
pub(crate) fn stop_step(step: &pb::StopStep) -> String {
    let address = signal_address(step.scope(), step.sender());
    let went = signal_went(step.delivered, step.gone, step.refused, step.error_number);
    format!("{} {address}: {went}", step.signal)
}

/// Describes sender and target of a signal, in a few words.
pub(crate) fn signal_address(scope: pb::SignalScope, sender: pb::SignalSender) -> String {
    let to = word(scope.as_str_name());
    match sender {
        pb::SignalSender::Shim if scope == pb::SignalScope::ShimChildren => to.to_owned(),
        pb::SignalSender::Shim => format!("{to}, sent by the shim"),
        pb::SignalSender::Keeper | pb::SignalSender::Unspecified => to.to_owned(),
    }
}

/// Describes the result of a round of a signal.
pub(crate) fn signal_went(delivered: u32, gone: u32, refused: u32, error: Option<i32>) -> String {
    let mut parts = vec![format!("{delivered} reached")];
    if gone > 0 {
        parts.push(format!("{gone} gone before"));
    }
    if refused > 0 {
        let why = error.map(|e| format!(" ({})", errno(e)));
        parts.push(format!("{refused} REFUSED{}", why.unwrap_or_default()));
    }
    parts.join(", ")
}

/// Returns the text of an errno(3), such as `Permission denied (os error 13)`.
pub(crate) fn errno(errno: i32) -> String {
    std::io::Error::from_raw_os_error(errno).to_string()
}

/// Describes what is known of a run's processes.
pub fn verdict(verdict: &pb::TreeVerdict) -> String {
    use pb::tree_verdict::Verdict;
    match &verdict.verdict {
        Some(Verdict::Empty(empty)) => {
            let proof = word(empty.proof().as_str_name());
            format!("empty, proved by {proof}")
        }
        Some(Verdict::Survivors(survivors)) => format!("SURVIVORS: pids {:?}", survivors.pids),
        Some(Verdict::Unverified(unverified)) => format!("unverified: {}", unverified.why),
        Some(Verdict::Stuck(stuck)) => format!("STUCK: {}", stuck_processes(stuck)),
        Some(Verdict::NeverRan(_)) => "never ran".to_owned(),
        Some(Verdict::Kept(kept)) => {
            format!("KEPT: {}", leftovers(&kept.processes, kept.unlisted))
        }
        None => "unknown to this version of kennel".to_owned(),
    }
}

/// Formats `12 (state D): why`, for each.
fn stuck_processes(stuck: &pb::tree_verdict::Stuck) -> String {
    let reported = stuck.processes.iter();
    let mut reported: Vec<_> = reported
        .map(|p| format!("{} (state {}): {}", p.pid, p.state, p.why))
        .collect();
    if stuck.unlisted > 0 {
        reported.push(format!("{} more", stuck.unlisted));
    }
    reported.join("; ")
}

/// Formats `sh (12), sleep (13) and 4 more`.
pub(crate) fn leftovers(processes: &[pb::Leftover], unlisted: u32) -> String {
    let listed = processes.iter();
    // A process chooses its name, line feeds and escapes included.
    let name = |p: &pb::Leftover| values::command_line([p.name.as_str()]);
    let listed: Vec<_> = listed.map(|p| format!("{} ({})", name(p), p.pid)).collect();
    let more = match unlisted {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", listed.join(", "))
}

/// Describes the state of standard input, on one line; the count first, so that a script can cut it off.
pub(crate) fn input(status: &pb::InputStatus) -> String {
    let accepted = status.accepted_offset;
    let accepted = accepted.map_or_else(|| "?".to_owned(), |bytes| bytes.to_string());
    let end = word(status.closed_by().as_str_name());
    format!("{accepted} {end}\n")
}

/// Returns the activity of a run; a dash where it is not known.
pub(crate) fn activity(activity: pb::Activity) -> String {
    match activity {
        pb::Activity::Unspecified => "-".to_owned(),
        known => known.as_str_name().replace("ACTIVITY_", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the values of an enum by their names.
    fn names<E: TryFrom<i32>>(name: fn(&E) -> &'static str) -> Vec<&'static str> {
        let values = (0..64).filter_map(|number| E::try_from(number).ok());
        values.map(|value| name(&value)).collect()
    }

    #[test]
    fn enum_values_have_words() {
        let all = [
            names(pb::InterruptMethod::as_str_name),
            names(pb::StreamsEnd::as_str_name),
            names(pb::Containment::as_str_name),
            names(pb::GapReason::as_str_name),
            names(pb::Deadline::as_str_name),
            names(pb::EmptyProof::as_str_name),
            names(pb::SignalScope::as_str_name),
            names(pb::InputEnd::as_str_name),
            names(pb::AnsweredBy::as_str_name),
            names(pb::RuleSwitchOff::as_str_name),
            names(pb::OutputOverflow::as_str_name),
            names(pb::DiskFullAction::as_str_name),
            names(pb::ApiAccess::as_str_name),
            names(pb::OnMaxPause::as_str_name),
            names(pb::Limit::as_str_name),
            names(pb::LeaderExitAction::as_str_name),
            names(pb::SpareReason::as_str_name),
            names(pb::LeakedRunStanding::as_str_name),
            names(pb::WaitCondition::as_str_name),
            names(pb::OutputRemovalReason::as_str_name),
        ]
        .concat();
        let exceeded = names(pb::Deadline::as_str_name);
        let exceeded = exceeded.iter().map(|name| format!("EXCEEDED_{name}"));
        let all: Vec<String> = all.into_iter().map(str::to_owned).chain(exceeded).collect();
        let missing = all.iter().filter(|name| !WORDS.contains_key(name.as_str()));
        let missing: Vec<_> = missing
            .filter(|name| *name != "WAIT_CONDITION_UNSPECIFIED")
            .collect();
        assert_eq!(missing, Vec::<&String>::new());
        let unused = WORDS
            .keys()
            .filter(|name| !all.iter().any(|known| known == *name));
        assert_eq!(unused.collect::<Vec<_>>(), Vec::<&&str>::new());
    }
}
