//! Commands that read files or processes of this host, and call no server.

use crate::values;
use kennel_cli::{
    AuditArgs, Failure, Format, USAGE, print_exact,
    values::{age, command_line, counted},
};
use kennel_keeper::audit::{Marked, marked};
use kennel_supervisor::{ChainError, ChainHead, check_audit_chain, export_audit_chain};
use std::{fmt::Write as _, path::Path};

/// `audit --verify` and `audit --export`.
pub(crate) fn audit(args: &AuditArgs, format: &Format) -> Result<(), Failure> {
    Failure::unless_text(format)?;
    let head = args.head.as_deref().map(values::chain_head).transpose();
    let head = head.map_err(|wrong| Failure::new(format!("--head: {wrong}")).code(USAGE))?;
    match (&args.verify, &args.export) {
        (Some(data_dir), _) => verify(data_dir, head.as_ref()),
        (None, Some(data_dir)) => export(data_dir, args.after),
        (None, None) => Ok(()),
    }
}

/// Checks the files of a data directory, or an exported file.
fn verify(data_dir: &Path, head: Option<&ChainHead>) -> Result<(), Failure> {
    let checked = check_audit_chain(data_dir, head)
        .map_err(|broken| Failure::new(format!("the audit log was changed: {broken}")))?;
    let ChainHead { seq, hash } = checked.head;
    print_exact(&format!("{seq}:{hash}\n"))
}

/// Prints the lines of a data directory behind this seq, for another place.
fn export(data_dir: &Path, after: u64) -> Result<(), Failure> {
    let take = |line: &[u8]| {
        let printed = print_exact(&format!("{}\n", String::from_utf8_lossy(line)));
        printed.map_err(NotExported::Unprinted)
    };
    export_audit_chain(data_dir, after, take).map_err(|error| match error {
        NotExported::Unread(error) => Failure::new(format!("cannot export the audit log: {error}")),
        NotExported::Unprinted(failure) => failure,
    })
}

/// Reason why a line was not exported.
enum NotExported {
    Unread(ChainError),
    Unprinted(Failure),
}

impl From<ChainError> for NotExported {
    fn from(error: ChainError) -> Self {
        Self::Unread(error)
    }
}

/// Lists processes with a marker, which can be found without a server: hints at their run, and no more.
pub(crate) fn leftovers() -> String {
    let mut text = "no server: only markers were looked for, and they are hints\n".to_owned();
    let marked = marked();
    for Marked {
        run,
        process,
        described,
    } in &marked
    {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "hint     {} {} {} uid {} age {} marker of run {run}",
            process.pid,
            command_line([&described.name]),
            command_line([&described.argv0]),
            described.uid,
            age(described.age)
        );
    }
    text + &counted(marked.len(), "process", "processes") + " with a marker\n"
}
