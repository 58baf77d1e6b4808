//! Kennel in a virtual machine of its own: a real unified hierarchy of control groups with every controller, another
//! kernel (Debian's 6.1), Kennel as PID 1, no memory left, loss of power. The guest's console is the result.
//!
//! Nothing of the development machine is seen by a guest but the files that are packed into its initramfs.

mod guest;
mod initramfs;
mod limits;
mod memory;
mod power;
mod programs;
