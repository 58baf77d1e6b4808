//! A walk over all processes of a tree, in steps: a tree may have thousands, and its reader has others to serve.

use super::{Root, Tree};
use crate::{peer, procfs};
use std::{
    cell::RefCell,
    collections::{HashMap, HashSet},
};

/// Processes that were verified to descend from the root of a tree since its last walk began, by number and start time.
///
/// INVARIANT: a descendant of a subreaper descends from it until one of both has ended, so it is read once, however deep
/// the tree below it is.
#[derive(Debug, Default)]
pub struct Lineage(pub(super) RefCell<HashMap<i32, u64>>);

/// All processes of a tree, as far as they were found.
#[derive(Debug)]
pub(super) struct TreeWalk {
    root: Root,
    /// Processes whose children are still to be read.
    open: Vec<i32>,
    found: HashSet<i32>,
    /// Processes in the control group that are still to be classified; absent: the group was not read.
    grouped: Option<Vec<i32>>,
}

impl TreeWalk {
    pub(super) fn new(tree: &Tree) -> Self {
        tree.lineage.0.borrow_mut().clear();
        let (open, found) = match tree.root {
            Root::Shim(shim) => (vec![shim], HashSet::new()),
            Root::Lost => {
                let roots = tree.roots();
                (roots.clone(), roots.into_iter().collect())
            }
            Root::Nowhere => (Vec::new(), HashSet::new()),
        };
        Self {
            root: tree.root,
            open,
            found,
            grouped: None,
        }
    }

    /// Reads one process; returns whether all are found. A tree that has lost its shim is walked from the start.
    pub(super) fn step(&mut self, tree: &Tree) -> bool {
        if self.root != tree.root {
            *self = Self::new(tree);
        }
        if let Some(parent) = self.open.pop() {
            for child in procfs::children(parent) {
                if self.found.insert(child) {
                    self.open.push(child);
                }
            }
            return false;
        }
        let Some(grouped) = &mut self.grouped else {
            if matches!(self.root, Root::Shim(_)) && !tree.shim_is_there() {
                self.found.clear();
            }
            self.grouped = Some(tree.listed());
            return false;
        };
        let Some(pid) = grouped.pop() else {
            return true;
        };
        if !tree.is_ours(pid) && tree.owns(pid, &self.found) {
            self.found.insert(pid);
        }
        false
    }

    /// Returns the numbers that were found, without Kennel's own.
    pub(super) fn pids(&mut self, tree: &Tree) -> HashSet<i32> {
        let mut pids = std::mem::take(&mut self.found);
        pids.retain(|pid| !tree.is_ours(*pid));
        pids
    }
}

impl Tree {
    /// Whether a process descends from the root of the tree.
    pub(super) fn is_below(&self, pid: i32) -> bool {
        let climb = |ancestor| {
            let known = &mut self.lineage.0.borrow_mut();
            peer::descends_from_known(pid, ancestor, known)
        };
        match self.root {
            Root::Shim(shim) => climb(Some(shim)) && self.shim_is_there(),
            // Processes of the leader's session are known.
            Root::Lost if self.foreign.is_some() => climb(None),
            // A process's parent may have just been killed, so that only this evidence of its descent is left.
            Root::Lost => climb(Some(std::process::id().cast_signed())),
            Root::Nowhere => false,
        }
    }
}
