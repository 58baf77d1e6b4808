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

None was found alive after a verdict `empty`: programs that try to outlive their run, and the verdict when each is
ended in five ways: its leader exits, Abort, its time is up, SIGKILL of the server and then Abort, SIGKILL of the
keeper. A cell has one verdict if the five agree.

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

/// Head of the table: a column for each privilege of the service.
const TABLE: &str = "
| program | does | root, a control group for each run | uid 65534, control groups read-only | root, a private pid namespace too |
|---|---|---|---|---|
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
    page.push_str(TABLE);
    for (index, program) in PROGRAMS.iter().enumerate() {
        let _ = write!(page, "| {} | {} |", program.name, program.does);
        for privilege in [Privilege::Root, Privilege::Unprivileged, Privilege::Private] {
            let _ = write!(page, " {} |", cell(matrix, index, privilege));
        }
        page.push('\n');
    }
    page
}

/// Returns the verdict on a program in all ways, or in each of them.
fn cell(matrix: &Matrix, program: usize, privilege: Privilege) -> String {
    let says = |how| &matrix[&(program, privilege, how)].says;
    let first = says(How::ALL[0]);
    if How::ALL.iter().all(|how| says(*how) == first) {
        return first.clone();
    }
    let each = How::ALL.map(|how| format!("{}: {}", heading_of(how), says(how)));
    each.join("; ")
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
