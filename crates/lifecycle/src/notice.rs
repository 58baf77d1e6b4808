//! Notices of a command by `sd_notify(3)`: one datagram with lines `NAME=value`. Pure: the sender is verified
//! elsewhere.

use crate::{Activity, limits};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// One datagram. Lines without a meaning here are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notice {
    /// `READY=1`.
    pub ready: bool,
    /// `STOPPING=1`.
    pub stopping: bool,
    /// `STATUS=`: one line without control characters, cut to [`limits::STATUS_BYTES_MAX`]; empty: no status any more.
    pub status: Option<String>,
    /// `X_KENNEL_ACTIVITY=`.
    pub activity: Option<Activity>,
    /// `WATCHDOG=`.
    pub watchdog: Option<WatchdogSign>,
    /// `EXTEND_TIMEOUT_USEC=`: from the present time.
    pub extend: Option<Duration>,
}

/// A sign for the watchdog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchdogSign {
    /// `WATCHDOG=1`: the command lives.
    Lives,
    /// `WATCHDOG=trigger`: the command has found itself not to work.
    Fails,
}

/// Status that a command reports of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusText {
    /// The text, one line.
    pub text: String,
    /// Whether the command has begun to end by itself.
    pub stopping: bool,
}

impl Notice {
    /// Parses these bytes.
    pub fn parse(datagram: &[u8]) -> Self {
        let mut notice = Self::default();
        let text = String::from_utf8_lossy(datagram);
        for (name, value) in text.lines().filter_map(|line| line.split_once('=')) {
            match (name, value) {
                ("READY", "1") => notice.ready = true,
                ("STOPPING", "1") => notice.stopping = true,
                ("STATUS", text) => notice.status = Some(one_line(text)),
                ("WATCHDOG", "1") => notice.watchdog = Some(WatchdogSign::Lives),
                ("WATCHDOG", "trigger") => notice.watchdog = Some(WatchdogSign::Fails),
                ("EXTEND_TIMEOUT_USEC", micros) => {
                    notice.extend = micros.parse().ok().map(Duration::from_micros);
                }
                ("X_KENNEL_ACTIVITY", word) => {
                    notice.activity = word.to_ascii_lowercase().parse().ok();
                }
                _ => {}
            }
        }
        notice
    }
}

fn one_line(text: &str) -> String {
    let shown = |c: char| if c.is_control() { ' ' } else { c };
    let line: String = text.chars().map(shown).collect();
    let end = line.floor_char_boundary(limits::STATUS_BYTES_MAX);
    line[..end].trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: A-22
    #[test]
    fn notify_message_parsing_survives_corrupt_bytes() {
        let valid = "READY=1\nSTATUS=Löwe 7\nX_KENNEL_ACTIVITY=idle\nWATCHDOG=1\nEXTEND_TIMEOUT_USEC=2000000";
        kennel_mutations::each(valid.as_bytes(), |wrong| {
            let status = Notice::parse(wrong).status.unwrap_or_default();
            assert!(!status.chars().any(char::is_control), "{status:?}");
            assert!(status.chars().count() <= wrong.len());
        });
    }

    // promise: RW-70
    #[test]
    fn notify_message_lines_are_parsed() {
        let said = Notice::parse(
            b"READY=1\nSTATUS=Loaded \x1b[1m7\nX_KENNEL_ACTIVITY=Awaiting_Input\nWATCHDOG=1\n\
              EXTEND_TIMEOUT_USEC=2000000\nMAINPID=7\nnonsense\n",
        );
        let expected = Notice {
            ready: true,
            stopping: false,
            status: Some("Loaded  [1m7".into()),
            activity: Some(Activity::AwaitingInput),
            watchdog: Some(WatchdogSign::Lives),
            extend: Some(Duration::from_secs(2)),
        };
        assert_eq!(said, expected);
        let other = Notice::parse(b"READY=0\nWATCHDOG=trigger\nSTOPPING=1\nX_KENNEL_ACTIVITY=x");
        assert!(!other.ready && other.stopping && other.activity.is_none());
        assert_eq!(other.watchdog, Some(WatchdogSign::Fails));
    }

    #[test]
    fn status_text_is_cut_between_characters() {
        let long = format!("STATUS=x{}", "\u{e4}".repeat(limits::STATUS_BYTES_MAX));
        let status = Notice::parse(long.as_bytes()).status.expect("there is one");
        assert_eq!(status.len(), limits::STATUS_BYTES_MAX - 1);
        assert_eq!(
            Notice::parse(b"STATUS=\xff").status.as_deref(),
            Some("\u{fffd}")
        );
    }
}
