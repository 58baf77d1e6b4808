//! Bounds on requests. Each has a name, and each is stated in the contract.

use std::{ops::RangeInclusive, time::Duration};

/// Longest single string of argv or environment (`MAX_ARG_STRLEN` of execve(2) is 128 KiB with its NUL).
pub const ARG_BYTES_MAX: usize = 128 * 1024 - 1;
/// Bytes of argv and environment together, NULs included.
pub const ARGV_ENV_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Environment entries that a caller may set.
pub const ENV_ENTRIES_MAX: usize = 10_000;
/// Longest name of a run, in bytes.
pub const RUN_NAME_MAX: usize = 128;
/// Most differences between two specs that are named.
pub const DIFFERING_FIELDS_MAX: usize = 32;
/// Longest key that a client gives a run, in bytes.
pub const REQUEST_KEY_MAX: usize = 128;
/// Arguments, the command's name included.
pub const ARGV_LEN_MAX: usize = 65_536;
/// Most paths of each kind that a spec opens for a sandbox.
pub const SANDBOX_PATHS_MAX: usize = 64;
/// Supplementary groups of a command.
pub const GROUPS_MAX: usize = 64;
/// Longest working directory (`PATH_MAX` with its NUL is 4096).
pub const CWD_BYTES_MAX: usize = 4095;
/// Bytes of input given with the spawn request.
pub const INITIAL_INPUT_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of input given with one write.
pub const INPUT_WRITE_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of a write's id.
pub const WRITE_ID_BYTES_MAX: usize = 128;
/// Secrets of one run.
pub const SECRETS_MAX: usize = 32;
/// Longest value of a secret.
pub const SECRET_BYTES_MAX: usize = 64 * 1024;
/// Longest name of a secret, or of a credential.
pub const SECRET_NAME_BYTES_MAX: usize = 255;
/// Longest path of a secret's file.
pub const SECRET_PATH_BYTES_MAX: usize = 1024;
/// Labels on one run.
pub const LABELS_MAX: usize = 64;
/// Annotations on one run.
pub const ANNOTATIONS_MAX: usize = 64;
/// Questions of one run that wait, and answered ones that are remembered.
pub const QUESTIONS_MAX: usize = 16;
/// Longest text of a question in bytes.
pub const QUESTION_BYTES_MAX: usize = 4096;
/// All texts of the questions of one run in bytes.
pub const QUESTIONS_BYTES_MAX: usize = 16 * 1024;
/// Time without output after which an unfinished line may be a question.
pub const QUIET: Duration = Duration::from_millis(100);
/// Longest value of an annotation.
pub const ANNOTATION_VALUE_BYTES_MAX: usize = 16 * 1024;
/// Keys and values of all annotations of one run together.
pub const ANNOTATIONS_BYTES_MAX: usize = 16 * 1024;
/// Longest text of a pattern of output lines.
pub const PATTERN_BYTES_MAX: usize = 1024;
/// Memory that a regular expression may take once compiled.
pub const REGEX_BYTES_MAX: usize = 1 << 20;
/// Longest text of a match that is reported, and of each of its groups; more is cut.
pub const MATCH_TEXT_BYTES_MAX: usize = 4096;
/// Captured values of one pattern of JSON.
pub const CAPTURES_MAX: usize = 16;
/// Longest line of output that is matched as a whole; a longer one is matched in pieces.
pub const MATCH_LINE_BYTES_MAX: u32 = 16 << 20;
/// Output rules of one run.
pub const OUTPUT_RULES_MAX: usize = 32;
/// Events that the output rules of one run emit; more are counted in one warning.
pub const RULE_EVENTS_MAX: u32 = 1000;
/// Shortest time between two probes.
pub const PROBE_INTERVAL_MIN: Duration = Duration::from_millis(10);
/// Longest time between two probes.
pub const PROBE_INTERVAL_MAX: Duration = Duration::from_hours(1);
/// Time between two probes of a readiness that names none.
pub const PROBE_INTERVAL_DEFAULT: Duration = Duration::from_secs(1);
/// Longest time of one probe.
pub const PROBE_TIMEOUT_MAX: Duration = Duration::from_mins(1);
/// Longest time of one probe of a readiness that names none.
pub const PROBE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(1);
/// Arguments of a helper command, which runs beside the run's own.
pub const HELPER_ARGS_MAX: usize = 64;
/// Bytes of its arguments.
pub const HELPER_BYTES_MAX: usize = 4096;
/// Helper commands that one run has at a time.
pub const HELPERS_MAX: usize = 4;
/// Failures in a row after which a run is not live, where its liveness names no number.
pub const LIVENESS_FAILURES_DEFAULT: u32 = 3;
/// Most such failures.
pub const LIVENESS_FAILURES_MAX: u32 = 1000;
/// Longest datagram of a command's notice; a longer one is not read.
pub const NOTICE_BYTES_MAX: usize = 4096;
/// Longest status text of a command; more is cut.
pub const STATUS_BYTES_MAX: usize = 256;
/// Longest total extension of each limit of time, where the spec names none.
pub const EXTENSION_DEFAULT: Duration = Duration::from_hours(1);
/// Shortest watchdog interval of a command.
pub const WATCHDOG_MIN: Duration = Duration::from_millis(100);
/// Longest watchdog interval.
pub const WATCHDOG_MAX: Duration = Duration::from_hours(24);
/// Time in which a run whose result is available may end by itself, where its rule names none.
pub const RESULT_AFTER_DEFAULT: Duration = Duration::from_secs(30);
/// Actions of a stop before its first signal.
pub const STOP_ACTIONS_MAX: usize = 16;
/// Longest time of one of them that is a command, and the default.
pub const STOP_COMMAND_MAX: Duration = Duration::from_secs(3);
/// Bytes that one of them writes to standard input.
pub const STOP_INPUT_BYTES_MAX: usize = 1024;
/// Exit codes beside 0 that count as success.
pub const SUCCESS_EXIT_CODES_MAX: usize = 16;
/// Longest grace period.
pub const GRACE_MAX: Duration = Duration::from_hours(24);
/// Grace period of a run that names none.
pub const GRACE_DEFAULT: Duration = Duration::from_secs(5);
/// Longest time limit of a run: ten years.
pub const TIMEOUT_MAX: Duration = Duration::from_hours(10 * 365 * 24);
/// Whole time of a shutdown, from its first signal to its last, where the node has no other.
pub const SHUTDOWN_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// Valid times.
pub const SHUTDOWN_TIMEOUT: RangeInclusive<Duration> = Duration::from_secs(1)..=GRACE_MAX;
/// Most of it that is no grace: for the census and the last commits.
const SHUTDOWN_CENSUS_MAX: Duration = Duration::from_secs(2);

/// Returns the longest grace inside a shutdown that takes this long.
pub fn shutdown_grace(timeout: Duration) -> Duration {
    timeout.saturating_sub((timeout / 5).min(SHUTDOWN_CENSUS_MAX))
}

/// Longest request id.
pub const REQUEST_ID_BYTES_MAX: usize = 128;
/// All bits of a file mode creation mask.
pub const UMASK_MAX: u32 = 0o777;
/// Valid nice values.
pub const NICE: RangeInclusive<i32> = -20..=19;
/// Valid values of `oom_score_adj`.
pub const OOM_SCORE_ADJ: RangeInclusive<i32> = -1000..=1000;
/// Rounds of signals that a stop certificate lists; more are counted.
pub const STEPS_LISTED_MAX: usize = 64;
/// Processes left behind by a leader that are listed; more are counted.
pub const LEFTOVERS_LISTED_MAX: usize = 256;
/// Valid memory limits in bytes: from 1 MiB, below which no command starts, to 1 EiB.
pub const MEMORY_BYTES: RangeInclusive<u64> = (1 << 20)..=(1 << 60);
/// Valid limits on processes and threads; the kernel knows no more (`PID_MAX_LIMIT`).
pub const PIDS: RangeInclusive<u64> = 1..=4_194_304;
/// The kernel's bounds on processor time in a period.
pub const CPU_QUOTA_MICROS: RangeInclusive<u64> = 1_000..=1_000_000_000;
/// The kernel's bounds on the period.
pub const CPU_PERIOD_MICROS: RangeInclusive<u64> = 1_000..=1_000_000;
/// Default period: the kernel's.
pub const CPU_PERIOD_DEFAULT: Duration = Duration::from_millis(100);
/// Valid processor weights.
pub const CPU_WEIGHT: RangeInclusive<u64> = 1..=10_000;
/// Block devices of one run with a limit of transfers.
pub const IO_LIMITS_MAX: usize = 16;
/// Valid limits on bytes in a second, up to 1 EiB.
pub const IO_BYTES: RangeInclusive<u64> = 1..=(1 << 60);
/// Valid limits on operations in a second; the kernel knows no more.
pub const IO_OPERATIONS: RangeInclusive<u64> = 1..=4_294_967_295;
/// Processes that SIGKILL does not end that are listed; more are counted.
pub const STUCK_LISTED_MAX: usize = 64;
/// Valid limits on output on disk in bytes: from 1 MiB to 1 TiB.
pub const OUTPUT_MAX_BYTES: RangeInclusive<u64> = (1 << 20)..=(1 << 40);
/// Limit on output on disk of a run that names none.
pub const OUTPUT_MAX_BYTES_DEFAULT: u64 = 64 << 20;
/// Ended runs of one owner whose output is retained.
pub const RETAINED_RUNS_DEFAULT: u32 = 100;
/// Minimum retention of an ended run's output, however many have ended since.
pub const RETAINED_AT_LEAST_DEFAULT: Duration = Duration::from_mins(1);
/// Rows of ended runs of one owner at a node.
pub const ROWS_PER_OWNER_DEFAULT: u32 = 10_000;
/// Minimum time for which the row of an ended run stays, however many have ended since.
pub const ROWS_AT_LEAST_DEFAULT: Duration = Duration::from_hours(24);
/// Longest time for which the row of an ended run stays.
pub const ROWS_AT_MOST_DEFAULT: Duration = Duration::from_hours(720);
/// Age up to which an id that a client brings makes a run.
pub const IDS_DEFAULT: Duration = Duration::from_hours(168);
/// Longest name of a terminal, in bytes.
pub const TERM_BYTES_MAX: usize = 128;
/// Requirement on the rows and columns of a terminal.
pub const TERMINAL_SIDE_WANTED: &str = "must be 1 to 65535";
