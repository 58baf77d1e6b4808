//! Keys that detach from a terminal.

/// Keys that detach from a terminal when typed in sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DetachKeys {
    keys: Vec<u8>,
    /// Number of them that were typed last.
    typed: usize,
}

impl Default for DetachKeys {
    /// Returns the default: Ctrl-P, Ctrl-Q.
    fn default() -> Self {
        Self {
            keys: vec![0x10, 0x11],
            typed: 0,
        }
    }
}

impl std::str::FromStr for DetachKeys {
    type Err = String;

    /// Parses a sequence such as `ctrl-p,ctrl-q`; empty: none.
    fn from_str(text: &str) -> Result<Self, String> {
        let keys = text.split(',').filter(|key| !key.is_empty()).map(|key| {
            let one = |text: &str| match text.as_bytes() {
                [byte] if byte.is_ascii_graphic() => Some(*byte),
                _ => None,
            };
            let key = match key.strip_prefix("ctrl-") {
                Some(letter) => one(letter)
                    .map(|letter| letter.to_ascii_uppercase())
                    .filter(|letter| (b'@'..=b'_').contains(letter))
                    .map(|letter| letter & 0x1f),
                None => one(key),
            };
            key.ok_or_else(|| "must be keys such as ctrl-p,ctrl-q".to_owned())
        });
        Ok(Self {
            keys: keys.collect::<Result<_, _>>()?,
            typed: 0,
        })
    }
}

impl DetachKeys {
    /// Returns no keys: nothing detaches.
    pub(crate) fn none() -> Self {
        Self {
            keys: Vec::new(),
            typed: 0,
        }
    }

    /// Returns the bytes that are for the run, and whether to detach. A possible beginning of the keys waits for the
    /// next one.
    pub(crate) fn filter(&mut self, typed: &[u8]) -> (Vec<u8>, bool) {
        let mut through = Vec::new();
        for key in typed {
            if self.keys.is_empty() {
                through.push(*key);
                continue;
            }
            // The longest suffix of the typed keys that begins the detach keys.
            let mut last = self.keys[..self.typed].to_vec();
            last.push(*key);
            let begun = (0..=last.len())
                .rev()
                .find(|len| self.keys.starts_with(&last[last.len() - len..]));
            self.typed = begun.unwrap_or(0);
            through.extend_from_slice(&last[..last.len() - self.typed]);
            if self.typed == self.keys.len() {
                self.typed = 0;
                return (through, true);
            }
        }
        (through, false)
    }

    /// Returns the typed keys that wait for the next one: they are for the run.
    pub(crate) fn release(&mut self) -> Vec<u8> {
        let waiting = std::mem::take(&mut self.typed);
        self.keys[..waiting].to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detach_keys_are_parsed_or_refused() {
        let keys = |text: &str| text.parse::<DetachKeys>().map(|keys| keys.keys);
        assert_eq!(keys("ctrl-p,ctrl-q"), Ok(DetachKeys::default().keys));
        assert_eq!(keys("ctrl-],a,~"), Ok(vec![0x1d, b'a', b'~']));
        assert_eq!(keys(""), Ok(Vec::new()));
        for bad in ["ctrl-", "ctrl-1", "ab", "ctrl-ä", "\u{1}"] {
            assert!(keys(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn complete_detach_key_sequence_detaches() {
        let filter = |keys: &str, typed: &[&[u8]]| {
            let mut keys: DetachKeys = keys.parse().expect("keys");
            let mut through = Vec::new();
            for typed in typed {
                let (part, leaves) = keys.filter(typed);
                through.extend(part);
                if leaves {
                    return (through, true);
                }
            }
            (through, false)
        };
        assert_eq!(
            filter("ctrl-p,ctrl-q", &[b"a\x10", b"\x11b"]),
            (b"a".to_vec(), true)
        );
        assert_eq!(
            filter("ctrl-p,ctrl-q", &[b"\x10", b"x\x11"]),
            (b"\x10x\x11".to_vec(), false)
        );
        assert_eq!(
            filter("ctrl-p,ctrl-q", &[b"\x10\x10\x11"]),
            (b"\x10".to_vec(), true)
        );
        assert_eq!(filter("a,a,b", &[b"aaab"]), (b"a".to_vec(), true));
        assert_eq!(filter("", &[b"\x10\x11"]), (b"\x10\x11".to_vec(), false));
    }

    // promise: P-11a
    #[test]
    fn released_keys_do_not_count_for_detaching() {
        let mut keys = DetachKeys::default();
        assert_eq!(keys.filter(b"a\x10"), (b"a".to_vec(), false));
        assert_eq!(keys.release(), b"\x10");
        assert_eq!(keys.release(), b"");
        assert_eq!(keys.filter(b"\x11"), (b"\x11".to_vec(), false));
    }
}
