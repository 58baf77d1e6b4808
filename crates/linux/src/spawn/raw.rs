//! System calls without libc: processes that share memory share its errno too, so none is touched here.

use libc::{c_int, c_long};

/// Entry of a child: its function, on a stack of its own, with its argument.
#[derive(Clone, Copy)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "no child begins there on this architecture")
)]
pub(super) struct Entry {
    /// Function that never returns.
    pub(super) function: extern "C" fn(*const libc::c_void) -> !,
    /// Its argument.
    pub(super) argument: *const libc::c_void,
}

/// Five arguments; calls with fewer ignore the rest.
pub(super) type Arguments = [usize; 5];

/// Whether [`clone`] can be called on this architecture.
pub(super) const CAN_CLONE: bool = cfg!(target_arch = "x86_64");

/// Returns the result of a system call, or its errno.
#[cfg(target_arch = "x86_64")]
fn result(returned: c_long) -> Result<usize, c_int> {
    usize::try_from(returned).map_err(|_| c_int::try_from(-returned).unwrap_or(c_int::MAX))
}

/// Calls the kernel.
///
/// # Safety
/// As the call of this number requires.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn call(number: c_long, arguments: Arguments) -> Result<usize, c_int> {
    let returned: c_long;
    // SAFETY: the kernel's calling convention: rcx and r11 are lost; the caller is responsible for the call itself.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => returned,
            in("rdi") arguments[0], in("rsi") arguments[1], in("rdx") arguments[2],
            in("r10") arguments[3], in("r8") arguments[4],
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    result(returned)
}

/// Calls the kernel through libc, whose errno belongs to this process alone: no child shares memory here.
///
/// # Safety
/// As the call of this number requires.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn call(number: c_long, arguments: Arguments) -> Result<usize, c_int> {
    let [first, second, third, fourth, fifth] = arguments;
    // SAFETY: the caller is responsible for the call.
    let returned = unsafe { libc::syscall(number, first, second, third, fourth, fifth) };
    if returned == -1 {
        // SAFETY: the errno location is valid in every thread.
        let location = unsafe { libc::__errno_location() };
        // SAFETY: `location` points to this thread's errno.
        return Err(unsafe { *location });
    }
    usize::try_from(returned).map_err(|_| libc::EINVAL)
}

/// Calls clone(2) or clone3(2) with a stack for the child, which begins at `entry`. Returns the child's number.
///
/// # Safety
/// As the call requires. The stack, the entry's argument and all that it points to stay unchanged until the child
/// executes another program or ends.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn clone(
    number: c_long,
    arguments: Arguments,
    entry: Entry,
) -> Result<c_int, c_int> {
    let returned: c_long;
    // SAFETY: the kernel's calling convention. Only the child continues at `call`, on the stack that the call gave it,
    // and does not return; the parent's registers and stack are as `syscall` leaves them.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") number => returned,
            in("rdi") arguments[0], in("rsi") arguments[1], in("rdx") arguments[2],
            in("r10") arguments[3], in("r8") arguments[4],
            in("r12") entry.argument, in("r13") entry.function,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    result(returned).and_then(|pid| c_int::try_from(pid).map_err(|_| libc::EOVERFLOW))
}

/// Not available on this architecture: see [`CAN_CLONE`].
///
/// # Safety
/// None is needed.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn clone(_: c_long, _: Arguments, _: Entry) -> Result<c_int, c_int> {
    Err(libc::ENOSYS)
}
