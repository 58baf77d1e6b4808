//! SIGKILL at bad moments. Whatever happens, every outcome is explained and nothing is left.

mod gate;
mod massacre;
mod recycle;
mod soak;
