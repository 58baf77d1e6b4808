//! Kennel in a virtual machine of its own: a real unified hierarchy of control groups with every controller, another
//! kernel (Debian's 6.1), Kennel as PID 1, no memory left, loss of power. The guest's console is the result.
//!
//! A guest sees nothing of the development machine except the files in its initramfs.

mod guest;
mod initramfs;
mod limits;
mod memory;
mod power;
mod programs;
mod systemd;
