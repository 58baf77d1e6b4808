//! A command and its working directory: as text, or as bytes where they are not UTF-8.

use crate::pb::{self, run_spec::Command};
use bytes::Bytes;
use kennel_lifecycle::{Inherited, Violation};
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

const ARGS: &str = "spec.argv.args";
const RAW_ARGS: &str = "spec.argv.raw_args";
const CWD: &str = "spec.cwd";
const RAW_CWD: &str = "spec.raw_cwd";
const OWN_CWD: &str = "spec.inherited.cwd";
const OWN_RAW_CWD: &str = "spec.inherited.raw_cwd";

/// Returns the command's name as text, if it has one.
pub(crate) fn name(argv: &pb::Argv) -> String {
    match (argv.args.first(), argv.raw_args.first()) {
        (Some(name), _) => name.clone(),
        (None, Some(name)) => String::from_utf8_lossy(name).into_owned(),
        (None, None) => String::new(),
    }
}

/// Returns how many words a command has, its name included.
pub(crate) fn words(argv: &pb::Argv) -> usize {
    argv.args.len() + argv.raw_args.len()
}

/// Fields that a client has sent as bytes, each with the name of its text.
#[derive(Debug)]
pub(super) struct ByteFields(Vec<[&'static str; 2]>);

impl ByteFields {
    /// Returns the form of this spec.
    pub(super) fn of(spec: &pb::RunSpec) -> Self {
        let has_raw_args =
            matches!(&spec.command, Some(Command::Argv(argv)) if !argv.raw_args.is_empty());
        let own = spec.inherited.as_ref();
        let fields = [
            (has_raw_args, [ARGS, RAW_ARGS]),
            (spec.raw_cwd.is_some(), [CWD, RAW_CWD]),
            (
                own.is_some_and(|own| own.raw_cwd.is_some()),
                [OWN_CWD, OWN_RAW_CWD],
            ),
        ];
        let raw = fields.into_iter().filter(|(is_raw, _)| *is_raw);
        Self(raw.map(|(_, names)| names).collect())
    }

    /// Renames violations to the fields that the client has set.
    pub(super) fn name(&self, mut violation: Violation) -> Violation {
        for [text, raw] in &self.0 {
            if let Some(rest) = violation.field.strip_prefix(text) {
                violation.field = format!("{raw}{rest}");
                break;
            }
        }
        violation
    }
}

/// Parses the command; empty where there is none, which the core refuses.
pub(super) fn argv(command: Option<Command>, found: &mut Vec<Violation>) -> Vec<OsString> {
    let Some(Command::Argv(argv)) = command else {
        return Vec::new();
    };
    if argv.raw_args.is_empty() {
        return argv.args.into_iter().map(OsString::from).collect();
    }
    if !argv.args.is_empty() {
        let why = "must be empty where args is set: it stands for all of it";
        found.push(Violation::new(RAW_ARGS, why));
    }
    argv.raw_args.into_iter().map(os_string).collect()
}

/// Parses the environment and the directory of the client itself.
pub(super) fn inherited(own: Option<pb::Inherited>, found: &mut Vec<Violation>) -> Inherited {
    let own = own.unwrap_or_default();
    Inherited {
        env: own.vars,
        cwd: directory(own.cwd, (OWN_RAW_CWD, own.raw_cwd), found),
    }
}

/// Parses a working directory.
pub(super) fn directory(
    text: Option<String>,
    (raw_field, raw): (&str, Option<Bytes>),
    found: &mut Vec<Violation>,
) -> Option<PathBuf> {
    if text.is_some() && raw.is_some() {
        let why = "must be absent where cwd is set";
        found.push(Violation::new(raw_field, why));
    }
    raw.map(os_string)
        .or(text.map(OsString::from))
        .map(PathBuf::from)
}

/// Returns the command as text where all of it is text, else as bytes.
pub(super) fn shown(argv: &[OsString]) -> Command {
    let text: Option<Vec<String>> = argv.iter().map(|a| a.to_str().map(str::to_owned)).collect();
    Command::Argv(match text {
        Some(words) => pb::Argv {
            args: words,
            ..pb::Argv::default()
        },
        None => pb::Argv {
            raw_args: argv.iter().map(|arg| bytes(arg)).collect(),
            ..pb::Argv::default()
        },
    })
}

/// Returns the working directory as `cwd` or as `raw_cwd`.
pub(super) fn shown_cwd(cwd: Option<&Path>) -> (Option<String>, Option<Bytes>) {
    match cwd.map(|cwd| (cwd.to_str(), cwd)) {
        None => (None, None),
        Some((Some(text), _)) => (Some(text.to_owned()), None),
        Some((None, cwd)) => (None, Some(bytes(cwd.as_os_str()))),
    }
}

/// Returns what a command has of its client.
pub(super) fn shown_inherited(inherited: &Inherited) -> pb::Inherited {
    let (cwd, raw_cwd) = shown_cwd(inherited.cwd.as_deref());
    pb::Inherited {
        vars: inherited.env.clone(),
        cwd,
        raw_cwd,
    }
}

fn bytes(text: &OsStr) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn os_string(bytes: Bytes) -> OsString {
    OsString::from_vec(bytes.into())
}

#[cfg(test)]
mod tests {
    use crate::{
        convert::spec::{parse, shown},
        keys::digest::DigestKey,
        pb::{self, run_spec::Command},
    };
    use std::os::unix::ffi::OsStrExt;

    fn raw(args: &[&'static [u8]], cwd: &'static [u8]) -> pb::RunSpec {
        pb::RunSpec {
            command: Some(Command::Argv(pb::Argv {
                raw_args: args.iter().map(|arg| (*arg).into()).collect(),
                ..pb::Argv::default()
            })),
            raw_cwd: Some(cwd.into()),
            ..pb::RunSpec::default()
        }
    }

    fn fields(spec: pb::RunSpec) -> Vec<String> {
        let mut found = Vec::new();
        parse(spec, &mut found);
        found.into_iter().map(|v| v.field).collect()
    }

    #[test]
    fn command_keeps_non_utf8_bytes() {
        let spec = raw(&[b"a", b"\xff"], b"/\xfe");
        let mut found = Vec::new();
        let parsed = parse(spec.clone(), &mut found);
        assert_eq!(found, []);
        let given = shown(&parsed.recorded()).expect("a spec");
        assert_eq!((given.command, given.raw_cwd), (spec.command, spec.raw_cwd));
        assert_eq!(parsed.command.argv[1].as_bytes(), b"\xff");
        let cwd = parsed.command.cwd.expect("it is set");
        assert_eq!(cwd.as_os_str().as_bytes(), b"/\xfe");
    }

    // promise: C-38
    #[test]
    fn violation_names_raw_or_text_field_as_sent() {
        let wrong = raw(&[b"", b"\xff\0"], b"\xff");
        assert_eq!(
            fields(wrong),
            [
                "spec.argv.raw_args[0]",
                "spec.argv.raw_args[1]",
                "spec.raw_cwd"
            ]
        );
        let mut both = raw(&[b"a"], b"/");
        both.cwd = Some("/".to_owned());
        both.command = Some(Command::Argv(pb::Argv {
            args: vec!["a".to_owned()],
            raw_args: vec![b"a"[..].into()],
        }));
        both.inherited = Some(pb::Inherited {
            cwd: Some("/".to_owned()),
            raw_cwd: Some(b"\xff"[..].into()),
            ..pb::Inherited::default()
        });
        let own = "spec.inherited.raw_cwd";
        assert_eq!(
            fields(both),
            ["spec.argv.raw_args", "spec.raw_cwd", own, own]
        );
    }

    // promise: C-38
    #[test]
    fn digest_covers_non_utf8_bytes() {
        let key = DigestKey::new([7; 32]);
        let of = |spec| key.of_spec(&parse(spec, &mut Vec::new()));
        let one = of(raw(&[b"a", b"\xff"], b"/"));
        assert_ne!(one, of(raw(&[b"a", b"\xfe"], b"/")));
        assert_ne!(one, of(raw(&[b"a", b"\xff"], b"/\xff")));
        let text = raw(&[b"a"], b"/");
        let mut same = text.clone();
        same.cwd = Some("/".to_owned());
        same.raw_cwd = None;
        assert_eq!(of(text), of(same));
    }
}
