//! Actions of a stop, as typed.

use super::{duration, signal};
use kennel_proto::pb::stop_action::{Action, CloseInput, Exec};
use std::time::Duration;

/// One `--stop-step`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StopStepFlag {
    /// An action.
    Action(Action),
    /// A wait of this time.
    Wait(Duration),
}

/// Makes the action that runs a script.
pub(crate) fn exec(script: &str) -> Action {
    Action::Exec(Exec {
        args: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
    })
}

/// Reads `close-stdin`, `input:TEXT`, `signal:NAME`, `exec:SCRIPT` or `wait:DURATION`.
pub(crate) fn stop_step(text: &str) -> Result<StopStepFlag, String> {
    const HINT: &str = "write close-stdin, input:TEXT, signal:NAME, exec:SCRIPT or wait:DURATION";
    if text == "close-stdin" {
        return Ok(StopStepFlag::Action(Action::CloseInput(CloseInput {})));
    }
    match text.split_once(':') {
        Some(("input", text)) => {
            let bytes = unescaped(text)?;
            Ok(StopStepFlag::Action(Action::Input(bytes.into())))
        }
        Some(("signal", name)) => {
            let name = signal(name)?.to_string();
            Ok(StopStepFlag::Action(Action::Signal(name)))
        }
        Some(("exec", script)) => Ok(StopStepFlag::Action(exec(script))),
        Some(("wait", time)) => duration(time).map(StopStepFlag::Wait),
        _ => Err(HINT.to_owned()),
    }
}

/// Returns the bytes of a text with `\n`, `\r`, `\t`, `\\` and `\xHH`.
fn unescaped(text: &str) -> Result<Vec<u8>, String> {
    const HINT: &str = "a backslash is written \\\\, other bytes as \\n, \\r, \\t or \\xHH";
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next() {
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(b'\\') => b'\\',
            Some(b'x') => {
                let digits = [rest.next(), rest.next()];
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let value = digit(digits[0]).zip(digit(digits[1]));
                let value = value.map(|(high, low)| high * 16 + low);
                value.and_then(|v| u8::try_from(v).ok()).ok_or(HINT)?
            }
            _ => return Err(HINT.to_owned()),
        });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_steps_are_read_or_refused() {
        let input = |bytes: &[u8]| {
            let bytes = bytes.to_vec().into();
            Ok(StopStepFlag::Action(Action::Input(bytes)))
        };
        assert_eq!(stop_step("input:quit\\n"), input(b"quit\n"));
        assert_eq!(stop_step("input:\\x04a:\\\\"), input(b"\x04a:\\"));
        let script = StopStepFlag::Action(exec("save; sync"));
        assert_eq!(stop_step("exec:save; sync"), Ok(script));
        let usr1 = Action::Signal("SIGUSR1".into());
        assert_eq!(stop_step("signal:usr1"), Ok(StopStepFlag::Action(usr1)));
        let wait = StopStepFlag::Wait(Duration::from_secs(2));
        assert_eq!(stop_step("wait:2s"), Ok(wait));
        for bad in [
            "",
            "close",
            "input:\\q",
            "input:\\x4",
            "signal:NOPE",
            "wait:",
        ] {
            assert!(stop_step(bad).is_err(), "{bad:?}");
        }
    }
}
