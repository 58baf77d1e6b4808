//! The keeper against the real kernel. This binary is everything: it lists and runs tests as the standard harness does;
//! it is the keeper of a test (`keeper`), and the server that this keeper executes (`server`), in which the scenario of
//! the test runs. Each test ends with a check for leftovers.

mod containment;
mod deaths;
mod fleet;
mod handover;
mod limits;
mod members;
mod pauses;
mod recorded;
mod reuse;
mod scenarios;
mod stage;
mod stray;
mod surroundings;
mod time;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("keeper") => stage::keep(&args[1..]),
        Some("server") => stage::serve(&args[1..]),
        Some(kennel_keeper::zygote::WORD) => kennel_keeper::zygote::main(),
        Some("hold") => handover::hold(&args[1..]),
        Some("leaderless") => pauses::leaderless(&args[1..]),
        _ => harness(&args),
    }
}

/// Implements the options with which nextest and `cargo test` call a test binary: `--list`, or names with `--exact`.
fn harness(args: &[String]) -> ExitCode {
    let tests = fleet::all();
    let names: Vec<&String> = args.iter().filter(|a| !a.starts_with('-')).collect();
    let has = |flag: &str| args.iter().any(|a| a == flag);
    if has("--list") {
        // No test is ignored.
        if !has("--ignored") {
            for test in &tests {
                println!("{}: test", test.name);
            }
        }
        return ExitCode::SUCCESS;
    }
    let exact = has("--exact");
    let wanted = |name: &str| {
        names.is_empty()
            || names.iter().any(|n| {
                if exact {
                    *n == name
                } else {
                    name.contains(n.as_str())
                }
            })
    };
    for test in tests.iter().filter(|t| wanted(&t.name)) {
        eprintln!("test {}", test.name);
        (test.run)();
    }
    ExitCode::SUCCESS
}
