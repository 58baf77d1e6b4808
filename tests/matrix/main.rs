//! The matrix: every program of the escape suite, ended in every way, with every privilege. Either nothing is left, or
//! the verdict lists the survivors or is unknown. `EMPTY` while a process lives is false, and fails.

mod bare;
mod column;
mod page;

use column::{Cell, How, Privilege};
use kennel_naughty::PROGRAMS;
use std::collections::BTreeMap;

/// Outcome by program, privilege and way.
type Matrix = BTreeMap<(usize, Privilege, How), Cell>;

// promise: T-40, T-42, N-7
#[tokio::test(flavor = "multi_thread")]
async fn every_program_is_ended_or_reported() {
    let (root, unprivileged, private) = tokio::join!(
        tokio::spawn(columns(Privilege::Root)),
        tokio::spawn(columns(Privilege::Unprivileged)),
        tokio::spawn(columns(Privilege::Private))
    );
    let mut matrix = root.expect("the columns of root");
    matrix.extend(unprivileged.expect("the columns without privileges"));
    matrix.extend(private.expect("the columns of private pid namespaces"));
    page::compare(&matrix);
    let lies: Vec<String> = matrix
        .iter()
        .filter_map(|((program, privilege, how), cell)| {
            let lie = cell.lie.as_ref()?;
            let name = PROGRAMS[*program].name;
            Some(format!("{name}, {how:?}, {privilege:?}: {lie}"))
        })
        .collect();
    assert!(lies.is_empty(), "{}", lies.join("\n"));
}

async fn columns(privilege: Privilege) -> Matrix {
    let mut matrix = Matrix::new();
    for how in How::ALL {
        let cells = Box::pin(column::fill(how, privilege)).await;
        for (program, cell) in cells.into_iter().enumerate() {
            matrix.insert((program, privilege, how), cell);
        }
    }
    matrix
}
