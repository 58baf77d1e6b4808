//! Permanent restrictions of a child: capabilities, sandbox, filter of system calls. The rules of its parent module
//! hold.

use super::{
    super::{
        raw::call,
        sandbox::{OF_FILES, Rules},
    },
    STEP_CAPABILITIES, STEP_SANDBOX, STEP_SECCOMP, must, wide,
};
use libc::c_int;
use std::mem::MaybeUninit;

/// `LANDLOCK_RULE_PATH_BENEATH`.
const PATH_BENEATH: usize = 1;
/// `SECCOMP_SET_MODE_FILTER`.
const SET_MODE_FILTER: usize = 1;
/// `_LINUX_CAPABILITY_VERSION_3`: sets of 64 bits.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// Removes these from the bounding set, while this process may: no program that it executes has them. The process
/// itself still has them.
pub(super) fn bound_capabilities(dropped: u64) {
    if dropped == 0 {
        return;
    }
    for number in 0..u64::BITS {
        let ask = [wide(libc::PR_CAPBSET_READ), number as usize, 0, 0, 0];
        // SAFETY: this prctl takes integers.
        match unsafe { call(libc::SYS_prctl, ask) } {
            Ok(1) if dropped >> number & 1 == 1 => {
                let drop = [wide(libc::PR_CAPBSET_DROP), number as usize, 0, 0, 0];
                // SAFETY: this prctl takes integers.
                must(unsafe { call(libc::SYS_prctl, drop) }, STEP_CAPABILITIES);
            }
            Ok(_) => {}
            // The kernel has no such capability, and no higher one.
            Err(_) => return,
        }
    }
}

/// Removes these from all other sets of this process; the kernel removes them from the ambient set with those.
pub(super) fn drop_capabilities(dropped: u64) {
    if dropped == 0 {
        return;
    }
    let header = [CAPABILITY_VERSION, 0];
    let mut sets = [0u32; 6];
    let pointers = [
        header.as_ptr() as usize,
        sets.as_mut_ptr() as usize,
        0,
        0,
        0,
    ];
    // SAFETY: header and two times three sets are as long as this version of the call requires.
    must(
        unsafe { call(libc::SYS_capget, pointers) },
        STEP_CAPABILITIES,
    );
    #[expect(clippy::cast_possible_truncation, reason = "a half of it each")]
    let halves = [dropped as u32, (dropped >> u32::BITS) as u32];
    for (at, set) in sets.iter_mut().enumerate() {
        *set &= !halves[at / 3];
    }
    // SAFETY: header and sets are those of capget above.
    must(
        unsafe { call(libc::SYS_capset, pointers) },
        STEP_CAPABILITIES,
    );
}

/// Closes all that the rules do not open. A path that is missing, or has a link in it by now, stays closed.
pub(super) fn enter_sandbox(rules: &Rules) {
    let attributes = rules.attributes.as_ptr() as usize;
    let create = [attributes, rules.attributes_len, 0, 0, 0];
    // SAFETY: the attributes are readable for their length.
    let made = unsafe { call(libc::SYS_landlock_create_ruleset, create) };
    let Ok(ruleset) = made else {
        return must(made, STEP_SANDBOX);
    };
    for (path, rights) in &rules.rights {
        let how = [
            wide(libc::O_PATH | libc::O_CLOEXEC) as u64,
            0,
            libc::RESOLVE_NO_SYMLINKS,
        ];
        let open = [
            wide(libc::AT_FDCWD),
            path.as_ptr() as usize,
            how.as_ptr() as usize,
            size_of_val(&how),
            0,
        ];
        // SAFETY: the path is a NUL-terminated string; `how` has the three numbers of an open_how.
        let opened = unsafe { call(libc::SYS_openat2, open) };
        let fd = match opened {
            Ok(fd) => fd,
            Err(libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::EACCES) => continue,
            // No descriptor is free, or a filter of the host denies the call: a sandbox that opens nothing is not
            // intended.
            failed @ Err(_) => return must(failed, STEP_SANDBOX),
        };
        let fd_number = c_int::try_from(fd).unwrap_or(-1);
        let rights = if is_directory(fd_number) {
            *rights
        } else {
            *rights & OF_FILES
        };
        // The kernel's `landlock_path_beneath_attr` is packed.
        let mut rule = [0u8; 12];
        rule[..8].copy_from_slice(&rights.to_ne_bytes());
        rule[8..].copy_from_slice(&fd_number.to_ne_bytes());
        let add = [ruleset, PATH_BENEATH, rule.as_ptr() as usize, 0, 0];
        if rights != 0 {
            // SAFETY: `rule` has the layout of a rule of this kind.
            must(
                unsafe { call(libc::SYS_landlock_add_rule, add) },
                STEP_SANDBOX,
            );
        }
        // SAFETY: close takes an integer: the descriptor of the file opened above.
        let _ = unsafe { call(libc::SYS_close, [fd, 0, 0, 0, 0]) };
    }
    // SAFETY: landlock_restrict_self takes integers.
    let entered = unsafe { call(libc::SYS_landlock_restrict_self, [ruleset, 0, 0, 0, 0]) };
    must(entered, STEP_SANDBOX);
    // SAFETY: close takes an integer: the ruleset created above.
    let _ = unsafe { call(libc::SYS_close, [ruleset, 0, 0, 0, 0]) };
}

fn is_directory(fd: c_int) -> bool {
    let mut about = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: there is space for a stat at `about`.
    if unsafe { libc::fstat(fd, about.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: fstat has filled `about`.
    let mode = unsafe { about.assume_init() }.st_mode;
    mode & libc::S_IFMT == libc::S_IFDIR
}

/// Installs the filter: from here on it judges every system call.
pub(super) fn filter_calls(filter: &[libc::sock_filter]) {
    if filter.is_empty() {
        return;
    }
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).unwrap_or(0),
        filter: filter.as_ptr().cast_mut(),
    };
    let set = [SET_MODE_FILTER, 0, &raw const program as usize, 0, 0];
    // SAFETY: the program is readable for its length, and the kernel only reads it.
    must(unsafe { call(libc::SYS_seccomp, set) }, STEP_SECCOMP);
}
