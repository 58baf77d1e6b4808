//! The matrix as a page of the documentation: written by the test with `UPDATE=1`, otherwise compared.

use crate::{
    Matrix,
    column::{How, Privilege},
};
use kennel_naughty::PROGRAMS;
use kennel_tests::programs;
use std::{env, fmt::Write as _, fs};

const PAGE: &str = "docs/guide/reference/matrix.md";

const HEAD: &str = "\
# Which programs escape, and from what?

None was found alive after a verdict `empty`: programs that try to outlive their run, each ended in each way, and the
verdict.

This page is written by `tests/matrix` (`UPDATE=1 cargo nextest run -p kennel-tests --test matrix`), which fails if a
cell changes, and if *empty* was reported for a run of which a census by marker, group, session, control group and
ancestry finds any process.

*empty (...)* names the proof: the control group is unpopulated, the shim has no child left (`ECHILD`), or both; or the
first process of the run's private pid namespace has ended, which the kernel lets it do as the last of all in it. In
such a namespace the parent of a command has the number 0, so a program that kills its parent by number ends its own
process group instead. *admitted*: not empty, and reported as such. The verdict was `survivors` or `stuck` and named
every process that the census found, or `unverified`, which claims nothing; which of them, and whether any was left, can
depend on the moment.

Blind spot of all proofs: a process that has entered an unrelated pid namespace, was orphaned there, and no longer has
the run's marker, if the run has no control group or if the process, as root, has left it.

The same programs run on your own host with `kennel doctor --prove`: see [prove](../how-to/prove.md).
";

pub(crate) fn compare(matrix: &Matrix) {
    let page = render(matrix);
    let path = programs::repository().join(PAGE);
    if env::var_os("UPDATE").is_some() {
        fs::write(&path, page).expect("the page can be written");
        return;
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    let changed: Vec<String> = page
        .lines()
        .filter(|line| !there.lines().any(|old| old == *line))
        .map(str::to_owned)
        .collect();
    assert!(
        there == page,
        "{PAGE} is not what was found:\n{}",
        changed.join("\n")
    );
}

fn render(matrix: &Matrix) -> String {
    let mut page = HEAD.to_owned();
    for (privilege, heading) in [
        (
            Privilege::Root,
            "The service is root, each run has a control group",
        ),
        (
            Privilege::Unprivileged,
            "The service is uid 65534, the control groups are read-only",
        ),
        (
            Privilege::Private,
            "The service is root, each run has a private pid namespace and a control group",
        ),
    ] {
        let _ = write!(page, "\n## {heading}\n\n| program |");
        for how in How::ALL {
            let _ = write!(page, " {} |", heading_of(how));
        }
        page.push_str("\n|---|");
        page.push_str(&"---|".repeat(How::ALL.len()));
        page.push('\n');
        for (index, program) in PROGRAMS.iter().enumerate() {
            let _ = write!(page, "| {} |", program.name);
            for how in How::ALL {
                let _ = write!(page, " {} |", matrix[&(index, privilege, how)].says);
            }
            page.push('\n');
        }
    }
    page.push_str("\n## The programs\n\n| program | does |\n|---|---|\n");
    for program in &PROGRAMS {
        let _ = writeln!(page, "| {} | {} |", program.name, program.does);
    }
    page
}

fn heading_of(how: How) -> &'static str {
    match how {
        How::NormalEnd => "the leader exits",
        How::Abort => "Abort",
        How::Timeout => "its time is up",
        How::ServerKilled => "SIGKILL of the server, then Abort",
        How::KeeperKilled => "SIGKILL of the keeper",
    }
}
