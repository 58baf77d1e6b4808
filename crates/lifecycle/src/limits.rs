//! Bounds on what a caller may ask. Each has a name, and each is said in the contract.

use std::{ops::RangeInclusive, time::Duration};

/// Longest single string of argv or environment (`MAX_ARG_STRLEN` of execve(2) is 128 KiB with its NUL).
pub const ARG_BYTES_MAX: usize = 128 * 1024 - 1;
/// argv and environment together, NULs included.
pub const ARGV_ENV_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Environment entries that a caller may set.
pub const ENV_ENTRIES_MAX: usize = 10_000;
/// Arguments, the command's name included.
pub const ARGV_LEN_MAX: usize = 65_536;
/// Most paths of each kind that a spec opens for a sandbox.
pub const SANDBOX_PATHS_MAX: usize = 64;
/// Supplementary groups of a command.
pub const GROUPS_MAX: usize = 64;
/// Longest working directory (`PATH_MAX` with its NUL is 4096).
pub const CWD_BYTES_MAX: usize = 4095;
/// Input given with the spawn request.
pub const INITIAL_INPUT_BYTES_MAX: usize = 1024 * 1024;
/// Input given with one write.
pub const INPUT_WRITE_BYTES_MAX: usize = 1024 * 1024;
/// Id of a write.
pub const WRITE_ID_BYTES_MAX: usize = 128;
/// Labels on one run.
pub const LABELS_MAX: usize = 64;
/// Annotations on one run.
pub const ANNOTATIONS_MAX: usize = 64;
/// Longest value of an annotation.
pub const ANNOTATION_VALUE_BYTES_MAX: usize = 4096;
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
/// The same of a readiness that names none.
pub const PROBE_INTERVAL_DEFAULT: Duration = Duration::from_secs(1);
/// Longest time of one probe.
pub const PROBE_TIMEOUT_MAX: Duration = Duration::from_mins(1);
/// The same of a readiness that names none.
pub const PROBE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(1);
/// Words of a command beside the run's own.
pub const HELPER_ARGS_MAX: usize = 64;
/// Bytes of its words.
pub const HELPER_BYTES_MAX: usize = 4096;
/// Commands beside its own that one run has at a time.
pub const HELPERS_MAX: usize = 4;
/// Failures in a row after which a run is not live, where its liveness names none.
pub const LIVENESS_FAILURES_DEFAULT: u32 = 3;
/// Most of them.
pub const LIVENESS_FAILURES_MAX: u32 = 1000;
/// Longest datagram in which a command says something of itself; a longer one is not read.
pub const NOTICE_BYTES_MAX: usize = 4096;
/// Longest text in which a command says what it is doing; more is cut.
pub const STATUS_BYTES_MAX: usize = 256;
/// By how much a command may extend its start timeout in all.
pub const START_EXTENSION_MAX: Duration = Duration::from_hours(1);
/// Shortest time in which a command can be asked for a sign that it lives.
pub const WATCHDOG_MIN: Duration = Duration::from_millis(100);
/// Longest time for it.
pub const WATCHDOG_MAX: Duration = Duration::from_hours(24);
/// Time in which a run whose result is there may end by itself, where its rule names none.
pub const RESULT_AFTER_DEFAULT: Duration = Duration::from_secs(30);
/// Actions of a stop before its first signal.
pub const STOP_ACTIONS_MAX: usize = 16;
/// Longest time of one of them that is a command, and that of one that names none.
pub const STOP_COMMAND_MAX: Duration = Duration::from_secs(3);
/// Bytes that one of them writes to standard input.
pub const STOP_INPUT_BYTES_MAX: usize = 1024;
/// Exit codes beside 0 that count as success.
pub const SUCCESS_EXIT_CODES_MAX: usize = 16;
/// Longest grace period.
pub const GRACE_MAX: Duration = Duration::from_hours(24);
/// Grace period of a run that names none.
pub const GRACE_DEFAULT: Duration = Duration::from_secs(5);
/// Longest time that a run can be given: ten years.
pub const TIMEOUT_MAX: Duration = Duration::from_hours(10 * 365 * 24);
/// Whole time from the first signal of a shutdown to its last.
pub const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(10);
/// Longest grace inside a shutdown: leaves time for the census and the last commits.
pub const SHUTDOWN_GRACE_MAX: Duration = Duration::from_secs(8);
/// Longest request id.
pub const REQUEST_ID_BYTES_MAX: usize = 128;
/// Nice values that there are.
pub const NICE: RangeInclusive<i32> = -20..=19;
/// Values of `oom_score_adj` that there are.
pub const OOM_SCORE_ADJ: RangeInclusive<i32> = -1000..=1000;
/// Rounds of signals that a stop certificate tells one by one; more are counted.
pub const STEPS_LISTED_MAX: usize = 64;
/// Processes left behind by a leader that are told one by one; more are counted.
pub const LEFTOVERS_LISTED_MAX: usize = 256;
/// Bytes of memory that a run may be held to: from 1 MiB, below which no command starts, to 1 EiB.
pub const MEMORY_BYTES: RangeInclusive<u64> = (1 << 20)..=(1 << 60);
/// Processes and threads that a run may be held to; the kernel knows no more (`PID_MAX_LIMIT`).
pub const PIDS: RangeInclusive<u64> = 1..=4_194_304;
/// Bounds of the kernel on the time in a period.
pub const CPU_QUOTA_MICROS: RangeInclusive<u64> = 1_000..=1_000_000_000;
/// Bounds of the kernel on the period.
pub const CPU_PERIOD_MICROS: RangeInclusive<u64> = 1_000..=1_000_000;
/// Period where none is given: the kernel's.
pub const CPU_PERIOD_DEFAULT: Duration = Duration::from_millis(100);
/// Shares that there are.
pub const CPU_WEIGHT: RangeInclusive<u64> = 1..=10_000;
/// Processes that SIGKILL does not end that are told one by one; more are counted.
pub const STUCK_TOLD_MAX: usize = 64;
/// Bytes that the output of a run may be held to on disk: from 1 MiB to 1 TiB.
pub const OUTPUT_MAX_BYTES: RangeInclusive<u64> = (1 << 20)..=(1 << 40);
/// The same of a run that names none.
pub const OUTPUT_MAX_BYTES_DEFAULT: u64 = 64 << 20;
/// Ended runs of one owner that keep their output.
pub const RETAINED_RUNS_DEFAULT: u32 = 100;
/// For how long after its end a run keeps its output, however many have ended since.
pub const RETAINED_AT_LEAST_DEFAULT: Duration = Duration::from_mins(1);
/// Longest name of a terminal, in bytes.
pub const TERM_BYTES_MAX: usize = 128;
/// What the rows or columns of a terminal have to be.
pub const TERMINAL_SIDE_WANTED: &str = "must be 1 to 65535";
