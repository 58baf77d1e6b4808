//! Filters of seccomp(2). The baseline profile: system calls that endanger the host, and that ordinary software does
//! not make, fail with EPERM. The filter of a sandbox: only the calls that Landlock lets through to other processes.
//! With either, a program of another word width cannot call the kernel at all.

use libc::{c_long, sock_filter};

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xC000_00B7;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the number of this architecture in linux/audit.h is missing here");

/// Calls by number from here on are those of x32.
#[cfg(target_arch = "x86_64")]
const X32_FIRST: u32 = 0x4000_0000;

/// Offsets in the kernel's `seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const ARGUMENTS: u32 = 16;

/// `__NR_open_tree_attr` of Linux 6.15, on every architecture.
const OPEN_TREE_ATTR: c_long = 467;

/// Calls of a sandbox that fail with EPERM: Landlock does not judge them, and they lead to other mounts or around them.
const AROUND_MOUNTS: &[c_long] = &[
    libc::SYS_mount_setattr,
    OPEN_TREE_ATTR,
    libc::SYS_open_tree,
    libc::SYS_open_by_handle_at,
    libc::SYS_setns,
];

/// Calls that fail with EPERM.
const DENIED: &[c_long] = &[
    // Loading another kernel, or kernel code.
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // Changes to the whole host.
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    // Mounts, and ways to bypass paths.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    OPEN_TREE_ATTR,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    libc::SYS_setns,
    // Kernel keys, which all processes of a user share.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // Access to memory and descriptors of other processes.
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
];

const PTRACE_ATTACH: u32 = 16;
const PTRACE_SEIZE: u32 = 0x4206;

const LOAD: u16 = 0x20;
const EQUAL: u16 = 0x15;
#[cfg(target_arch = "x86_64")]
const AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;
const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;

/// Whether the kernel has filters, or why not.
pub fn support() -> Result<(), String> {
    let action = ERRNO;
    // The value of `SECCOMP_GET_ACTION_AVAIL`.
    let ask = 2;
    // SAFETY: the call reads 32 bits at `action`, which outlives it.
    let asked = unsafe { libc::syscall(libc::SYS_seccomp, ask, 0, &raw const action) };
    match nix::errno::Errno::result(asked) {
        Ok(_) => Ok(()),
        Err(errno) => Err(format!("seccomp: {}", std::io::Error::from(errno))),
    }
}

/// Returns the program of the profile.
pub(super) fn baseline() -> Vec<sock_filter> {
    program(DENIED)
}

/// Returns the program of a sandbox without the profile. Landlock does not judge prlimit(2), and a limit of processor
/// time kills.
pub(super) fn of_sandbox() -> Vec<sock_filter> {
    program(AROUND_MOUNTS)
}

/// Builds a program that denies these calls, tracing by other processes, and changes of the limits of others.
fn program(calls: &[c_long]) -> Vec<sock_filter> {
    let fail = |errno: i32| step(RETURN, ERRNO | errno.cast_unsigned());
    let denied = fail(libc::EPERM);
    let allowed = step(RETURN, ALLOW);
    let low = |argument: u32| step(LOAD, ARGUMENTS + 8 * argument);
    let high = |argument: u32| step(LOAD, ARGUMENTS + 8 * argument + 4);
    let mut program = vec![
        step(LOAD, ARCH),
        jump(EQUAL, ARCHITECTURE, 1, 0),
        fail(libc::ENOSYS),
        step(LOAD, NUMBER),
    ];
    #[cfg(target_arch = "x86_64")]
    program.extend([jump(AT_LEAST, X32_FIRST, 0, 1), fail(libc::ENOSYS)]);
    for call in calls {
        program.extend([jump(EQUAL, number(*call), 0, 1), denied]);
    }
    // A process may be traced only at its own request, by its parent.
    program.extend([
        jump(EQUAL, number(libc::SYS_ptrace), 0, 5),
        low(0),
        jump(EQUAL, PTRACE_ATTACH, 1, 0),
        jump(EQUAL, PTRACE_SEIZE, 0, 1),
        denied,
        allowed,
    ]);
    // Limits can be set only for the caller, and read for all processes.
    program.extend([
        jump(EQUAL, number(libc::SYS_prlimit64), 0, 8),
        low(0),
        jump(EQUAL, 0, 5, 0),
        low(2),
        jump(EQUAL, 0, 0, 2),
        high(2),
        jump(EQUAL, 0, 1, 0),
        denied,
        allowed,
    ]);
    program.push(allowed);
    program
}

fn number(call: c_long) -> u32 {
    u32::try_from(call).expect("numbers of system calls are small")
}

fn step(code: u16, k: u32) -> sock_filter {
    jump(code, k, 0, 0)
}

fn jump(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evaluates the program by the rules of the kernel's machine for these four instructions.
    fn answer(program: &[sock_filter], arch: u32, call: c_long, arguments: [u64; 3]) -> u32 {
        let (mut at, mut loaded) = (0, 0u32);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            let jumps = |is: bool| usize::from(if is { jt } else { jf });
            match code {
                RETURN => return k,
                EQUAL => at += jumps(loaded == k),
                LOAD => {
                    loaded = match k {
                        NUMBER => number(call),
                        ARCH => arch,
                        offset => {
                            let offset = offset - ARGUMENTS;
                            let argument = arguments[(offset / 8) as usize];
                            let half = argument >> (offset % 8 * 8);
                            u32::try_from(half & u64::from(u32::MAX)).expect("a half")
                        }
                    }
                }
                _ => at += jumps(loaded >= k),
            }
        }
    }

    // promise: AC-19
    #[test]
    fn seccomp_baseline_denies_dangerous_syscalls() {
        let eperm = ERRNO | libc::EPERM.cast_unsigned();
        let profile = baseline();
        let here = |call, arguments| answer(&profile, ARCHITECTURE, call, arguments);
        for call in DENIED {
            assert_eq!(here(*call, [0; 3]), eperm, "{call}");
        }
        assert_eq!(here(libc::SYS_ptrace, [16, 1, 0]), eperm);
        assert_eq!(here(libc::SYS_ptrace, [0x4206, 1, 0]), eperm);
        assert_eq!(here(libc::SYS_ptrace, [0, 0, 0]), ALLOW);
        assert_eq!(here(libc::SYS_prlimit64, [0, 7, 1]), ALLOW);
        assert_eq!(here(libc::SYS_prlimit64, [9, 7, 0]), ALLOW);
        assert_eq!(here(libc::SYS_prlimit64, [9, 7, 1]), eperm);
        assert_eq!(here(libc::SYS_prlimit64, [9, 7, 1 << 32]), eperm);
        for call in [libc::SYS_execve, libc::SYS_clone, libc::SYS_unshare] {
            assert_eq!(here(call, [0; 3]), ALLOW, "{call}");
        }
        let enosys = ERRNO | libc::ENOSYS.cast_unsigned();
        let other = ARCHITECTURE ^ 1;
        assert_eq!(answer(&profile, other, libc::SYS_read, [0; 3]), enosys);
    }

    // promise: AC-17
    #[test]
    fn sandbox_denies_prlimit_on_other_processes() {
        let eperm = ERRNO | libc::EPERM.cast_unsigned();
        let sandbox = of_sandbox();
        let here = |call, arguments| answer(&sandbox, ARCHITECTURE, call, arguments);
        assert_eq!(here(libc::SYS_prlimit64, [9, 0, 1]), eperm);
        assert_eq!(here(libc::SYS_prlimit64, [0, 0, 1]), ALLOW);
        for call in DENIED {
            let is_denied = AROUND_MOUNTS.contains(call);
            let expected = if is_denied { eperm } else { ALLOW };
            assert_eq!(here(*call, [0; 3]), expected, "{call}");
        }
        assert!(AROUND_MOUNTS.iter().all(|call| DENIED.contains(call)));
    }
}
