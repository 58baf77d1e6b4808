//! Capabilities of Linux by name; see capabilities(7).

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Their names in the order of their numbers, as in `linux/capability.h`.
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];
/// Name for all capabilities, those of later kernels included.
const ALL: &str = "ALL";

/// A set of capabilities, a bit for each number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapabilitySet(pub u64);

/// A name that no capability has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no capability: expected ALL, or a name of capabilities(7) such as NET_RAW")]
pub struct UnknownCapability(pub String);

impl CapabilitySet {
    /// No capability.
    pub const NONE: Self = Self(0);
    /// All of them, those of later kernels included.
    pub const ALL: Self = Self(u64::MAX);

    /// Capabilities that lead around a sandbox, or endanger the host: `DAC_READ_SEARCH`, `SYS_MODULE`, `SYS_RAWIO`,
    /// `SYS_PTRACE`, `SYS_ADMIN`, `SYS_BOOT`, `SYS_TIME`, `MKNOD`, `MAC_OVERRIDE`, `MAC_ADMIN`, `SYSLOG`, `PERFMON`,
    /// `BPF` and `CHECKPOINT_RESTORE`. With `PERFMON` or `SYS_ADMIN` the environment of any process can be read (Linux
    /// 6.13).
    pub const AROUND_SANDBOX: Self = Self(
        1 << 2
            | 1 << 16
            | 1 << 17
            | 1 << 19
            | 1 << 21
            | 1 << 22
            | 1 << 25
            | 1 << 27
            | 1 << 32
            | 1 << 33
            | 1 << 34
            | 1 << 38
            | 1 << 39
            | 1 << 40,
    );

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self == Self::NONE
    }

    /// Returns the capabilities of either set.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the names in the set, in the order of their numbers; for the full set `ALL`.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let all = (self == Self::ALL).then_some(ALL);
        let each = NAMES.iter().enumerate();
        let each = each.filter(move |(number, _)| all.is_none() && self.0 >> number & 1 == 1);
        all.into_iter().chain(each.map(|(_, name)| *name))
    }
}

impl FromStr for CapabilitySet {
    type Err = UnknownCapability;

    /// Parses one name, in any case, with or without `CAP_`.
    fn from_str(text: &str) -> Result<Self, UnknownCapability> {
        let upper = text.to_ascii_uppercase();
        if upper == ALL {
            return Ok(Self::ALL);
        }
        let name = upper.strip_prefix("CAP_").unwrap_or(&upper);
        let number = NAMES.iter().position(|known| *known == name);
        let number = number.ok_or_else(|| UnknownCapability(text.to_owned()))?;
        Ok(Self(1 << number))
    }
}

impl fmt::Display for CapabilitySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.names().collect();
        f.write_str(&names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capability_set_for_a_sandbox_is_as_documented() {
        assert_eq!(
            CapabilitySet::AROUND_SANDBOX.to_string(),
            "DAC_READ_SEARCH, SYS_MODULE, SYS_RAWIO, SYS_PTRACE, SYS_ADMIN, SYS_BOOT, SYS_TIME, MKNOD, MAC_OVERRIDE, \
             MAC_ADMIN, SYSLOG, PERFMON, BPF, CHECKPOINT_RESTORE"
        );
    }

    #[test]
    fn capability_names_and_numbers_convert() {
        let raw: CapabilitySet = "cap_net_raw".parse().expect("a name");
        assert_eq!(raw.0, 1 << 13);
        let last: CapabilitySet = "CHECKPOINT_RESTORE".parse().expect("a name");
        assert_eq!(last.0, 1 << 40);
        assert_eq!(raw.union(last).to_string(), "NET_RAW, CHECKPOINT_RESTORE");
        let all: CapabilitySet = "all".parse().expect("a name");
        assert_eq!(all, CapabilitySet::ALL);
        assert_eq!(all.to_string(), "ALL");
        assert_eq!(CapabilitySet::NONE.names().count(), 0);
        "NET_RAWER"
            .parse::<CapabilitySet>()
            .expect_err("no such capability");
    }
}
