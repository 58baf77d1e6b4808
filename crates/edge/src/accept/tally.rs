//! Numbers of connections or calls: of each, of each group of them, and of all.

use std::{collections::HashMap, hash::Hash};

#[derive(Debug)]
pub(crate) struct Tally<A, B> {
    of_each: HashMap<A, usize>,
    of_group: HashMap<B, usize>,
    all: usize,
}

impl<A, B> Default for Tally<A, B> {
    fn default() -> Self {
        Self {
            of_each: HashMap::new(),
            of_group: HashMap::new(),
            all: 0,
        }
    }
}

impl<A: Hash + Eq + Clone, B: Hash + Eq + Clone> Tally<A, B> {
    /// Returns the number of this one, of its group, and of all.
    pub(crate) fn counts(&self, each: &A, group: &B) -> [usize; 3] {
        let of_each = self.of_each.get(each).copied();
        let of_group = self.of_group.get(group).copied();
        [of_each.unwrap_or(0), of_group.unwrap_or(0), self.all]
    }

    pub(crate) fn all(&self) -> usize {
        self.all
    }

    pub(crate) fn add(&mut self, each: &A, group: &B) {
        *self.of_each.entry(each.clone()).or_default() += 1;
        *self.of_group.entry(group.clone()).or_default() += 1;
        self.all += 1;
    }

    pub(crate) fn remove(&mut self, each: &A, group: &B) {
        give_back(&mut self.of_each, each);
        give_back(&mut self.of_group, group);
        self.all -= 1;
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.of_each.is_empty() && self.of_group.is_empty() && self.all == 0
    }
}

fn give_back<K: Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}
