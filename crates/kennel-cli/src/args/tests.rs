use super::*;
use crate::Command;

fn parse(words: &[&str]) -> Result<Cli<Command>, clap::Error> {
    Cli::try_parse_from(std::iter::once(&"kennel").chain(words))
}

#[test]
fn arguments_after_the_command_belong_to_it() {
    for words in [
        &["run", "--", "ls", "--label", "-o", "x"][..],
        &["run", "ls", "--label", "-o", "x"][..],
    ] {
        let cli = parse(words).expect("it is well formed");
        let Command::Run(run) = cli.command else {
            panic!("not run");
        };
        let spec = run.spec;
        assert_eq!(spec.argv, ["ls", "--label", "-o", "x"]);
        assert!(!spec.fields.has("label") && cli.client.output.is_none());
    }
}

#[test]
fn misspelt_flag_is_not_taken_as_command() {
    assert!(parse(&["run", "--lable", "a=b", "--", "ls"]).is_err());
    assert!(parse(&["run"]).is_err());
    assert!(parse(&["run", "--grace", "5x", "--", "ls"]).is_err());
}

#[test]
fn global_flags_may_precede_or_follow_the_command() {
    for words in [
        &["-o", "json", "--server", "unix:/s", "ps"][..],
        &["ps", "-o", "json", "--server", "unix:/s"][..],
    ] {
        let client = parse(words).expect("it is well formed").client;
        assert_eq!(client.output, Some(Format::Json));
        assert_eq!(client.server.as_deref(), Some("unix:/s"));
    }
}

/// Ignored beside the name of a run, `--dry-run` would act.
#[test]
fn selection_flags_need_a_selection() {
    for command in [
        &["abort", "x"][..],
        &["signal", "HUP", "x"],
        &["annotate", "x", "a=b"],
    ] {
        for flag in [&["--dry-run"][..], &["--yes"], &["--at-most", "5"]] {
            assert!(
                parse(&[command, flag].concat()).is_err(),
                "{command:?} {flag:?}"
            );
        }
    }
    let selected = parse(&["abort", "-f", "name=x", "--dry-run", "--at-most", "5"]);
    assert!(selected.is_ok(), "{:?}", selected.err());
    assert!(parse(&["abort", "x", "-f", "name=x"]).is_err());
    assert!(parse(&["abort"]).is_err());
}
