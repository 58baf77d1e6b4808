//! SIGKILL at bad moments. After each, every outcome is explained and nothing is left.

#[cfg(debug_assertions)]
mod crash_points;
mod endurance;
mod fleet;
mod gate;
mod gate_storm;
mod input;
mod keyed_loops;
mod lines;
mod massacre;
mod mutated;
mod names;
mod outage;
mod overload;
mod recycle;
mod soak;
mod terminal;
mod upgrades;
