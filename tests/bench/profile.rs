//! `make profile`: the phases of one run, and its cost to each process.
//!
//! Three measurements of the same load, `/bin/true` spawned and waited for one after another: the spans that the server
//! itself measures, with nothing attached; counters of the kernel for each process; and system calls by name, under
//! strace(1), whose times mean nothing and whose counts are exact. perf(1) adds samples of the processor, if it is
//! installed.

mod hops;
mod perf;
mod usage;

use crate::counts::one_after_another;
use kennel_tests::{
    Kennel,
    strace::{Call, Role, Strace},
};
use std::{collections::BTreeMap, fmt::Write as _};

/// Runs before anything is counted.
const WARM_UP: usize = 50;
/// Runs that are traced.
const TRACED: usize = 100;
/// Calls that are listed for each process; the others are one line.
const LISTED: usize = 14;
/// The roles, in the order of the table.
const ROLES: [(Role, &str); 4] = [
    (Role::Server, "server"),
    (Role::Keeper, "keeper"),
    (Role::Shim, "shim"),
    (Role::Command, "command"),
];

pub(crate) async fn measure() {
    let parts = [
        ("One spawn, hop by hop", hops::measure().await),
        ("One run, by process", usage::measure().await),
        (
            "System calls of one run, by process and name",
            calls().await,
        ),
        ("Where the processor was", perf::measure().await),
    ];
    let mut text = String::from("# One run of /bin/true: spawned, waited for, next\n");
    for (head, part) in parts {
        let body = part.unwrap_or_else(|why| format!("not measured: {why}\n"));
        let _ = write!(text, "\n## {head}\n\n{body}");
    }
    print!("{text}");
    let file = crate::target().join("profile.txt");
    match std::fs::write(&file, &text) {
        Ok(()) => println!("\nThis text is in {}.", file.display()),
        Err(error) => println!("\n{} could not be written: {error}", file.display()),
    }
}

async fn calls() -> Result<String, String> {
    let kennel = Kennel::on_sqlite().await;
    let mut client = kennel.client().await;
    one_after_another(&mut client, WARM_UP).await;
    let strace = Strace::attach(&kennel)?;
    one_after_another(&mut client, TRACED).await;
    Ok(by_role(&strace.detach(), TRACED))
}

/// Returns a table for each role, its most frequent calls first.
fn by_role(calls: &[Call], runs: usize) -> String {
    let mut text = String::new();
    for (role, name) in ROLES {
        let of_role: Vec<&Call> = calls.iter().filter(|call| call.role == role).collect();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for call in &of_role {
            *counts.entry(call.name()).or_default() += 1;
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|(name, count)| (std::cmp::Reverse(*count), *name));
        let _ = writeln!(
            text,
            "{name:<9} {:>7.1} a run",
            per_run(of_role.len(), runs)
        );
        for (call, count) in counts.iter().take(LISTED) {
            let _ = writeln!(text, "  {call:<18} {:>6.2}", per_run(*count, runs));
        }
        let rest: usize = counts.iter().skip(LISTED).map(|(_, count)| count).sum();
        let _ = writeln!(text, "  {:<18} {:>6.2}", "all others", per_run(rest, runs));
    }
    text
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn per_run(count: usize, runs: usize) -> f64 {
    count as f64 / runs as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_listed_by_role_most_frequent_first() {
        let call = |role, line: &str| Call {
            role,
            line: line.to_owned(),
        };
        let calls = [
            call(Role::Shim, "close(3) = 0"),
            call(Role::Shim, "read(3) = 0"),
            call(Role::Shim, "close(4) = 0"),
            call(Role::Keeper, "read(3) = 0"),
        ];
        let text = by_role(&calls, 2);
        let at = |what: &str| {
            text.find(what)
                .unwrap_or_else(|| panic!("no {what} in {text}"))
        };
        assert!(at("keeper        0.5 a run") < at("shim          1.5 a run"));
        assert!(at("  close                1.00") > at("shim "));
        assert!(text.contains("  all others           0.00"));
    }
}
