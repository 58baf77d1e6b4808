"""Attempts of a command in a sandbox on objects outside of it. Arguments: KEEPER, then NAME PATH DEVICE INODE of each
object. One line for each attempt: kind, call, object, result. The result is `did`, an errno, or, where the call shows
which object it has met, `real` or `cover`."""

import ctypes, errno, os, socket, struct, sys

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
AT = -100
EMPTY = 0x1000
NEWNS, NEWUSER = 0x20000, 0x10000000
own = os.environ["KENNEL_RUN_DIR"]


def system(number, *arguments):
    def converted(value):
        if isinstance(value, str):
            value = value.encode()
        if isinstance(value, bytes):
            return ctypes.c_char_p(value)
        if isinstance(value, int):
            return ctypes.c_long(value)
        return value

    got = libc.syscall(ctypes.c_long(number), *map(converted, arguments))
    if got == -1:
        raise OSError(ctypes.get_errno(), "")
    return got


def opened(path, flags=os.O_RDONLY):
    return os.open(path, flags | os.O_CLOEXEC)


def is_of_host(path):
    """Whether a success must change nothing: other programs need it."""
    return path == "/etc"


def mode(path, changed=0):
    return os.stat(path).st_mode & 0o7777 if is_of_host(path) else changed


def user(path):
    return os.stat(path).st_uid if is_of_host(path) else 65534


def times(path):
    seen = os.stat(path)
    before = [seen.st_atime_ns, seen.st_mtime_ns] if is_of_host(path) else [0, 0]
    return struct.pack("4q", *(part for ns in before for part in divmod(ns, 10**9)))


def micros(path):
    parts = struct.unpack("4q", times(path))
    return struct.pack("4q", parts[0], parts[1] // 1000, parts[2], parts[3] // 1000)


def access_list(path):
    if is_of_host(path):
        entries = ((1, 7, 2**32 - 1), (4, 5, 2**32 - 1), (32, 5, 2**32 - 1))
    else:
        entries = ((1, 7, 2**32 - 1), (2, 7, 65534), (4, 0, 2**32 - 1), (16, 7, 2**32 - 1), (32, 0, 2**32 - 1))
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def attributes():
    return struct.pack("4Q", 0, 1, 0, 0)


def handle(path):
    buffer = ctypes.create_string_buffer(struct.pack("Ii", 128, 0), 136)
    mount = ctypes.c_int()
    system(303, AT, path, buffer, ctypes.byref(mount), 0)
    return buffer


def with_fd(path, call, flags=os.O_RDONLY):
    fd = opened(path, flags)
    try:
        return call(fd)
    finally:
        os.close(fd)


def in_child(steps):
    """Does it in a child, which may leave its namespaces."""
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            steps()
            said = "did"
        except OSError as error:
            said = str(error.errno)
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    said = os.read(read, 64).decode()
    os.close(read)
    os.wait()
    if said != "did":
        raise OSError(int(said or errno.EIO), "")


def below(steps):
    """Does it in a user and mount namespace below the sandbox's."""

    def there():
        system(272, NEWUSER | NEWNS)
        steps()

    return in_child(there)


def connect(path):
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(path)


def bind(path):
    with socket.socket(socket.AF_UNIX) as peer:
        peer.bind(path)


def flags_of(fd):
    libc_flags = ctypes.c_long(0x10)
    system(16, fd, 0x40086602, ctypes.byref(libc_flags))


def project_of(fd):
    system(16, fd, 0x401C5820, ctypes.create_string_buffer(28))


def setns(keeper, kind):
    fd = os.pidfd_open(keeper)
    system(308, fd, kind)


CHANGES = {
    "chmod": lambda p: system(90, p, mode(p)),
    "fchmod": lambda p: with_fd(p, lambda fd: system(91, fd, mode(p))),
    "fchmodat": lambda p: system(268, AT, p, mode(p, 0o777)),
    "fchmodat2": lambda p: with_fd(p, lambda fd: system(452, fd, "", mode(p, 0o777), EMPTY), os.O_PATH),
    "chmod by /proc/self/fd": lambda p: with_fd(p, lambda fd: os.chmod(f"/proc/self/fd/{fd}", mode(p, 0o777)), os.O_PATH),
    "chown": lambda p: system(92, p, user(p), user(p)),
    "chown to itself": lambda p: system(92, p, os.getuid(), os.getgid()),
    "fchown": lambda p: with_fd(p, lambda fd: system(93, fd, user(p), user(p))),
    "lchown": lambda p: system(94, p, user(p), user(p)),
    "fchownat": lambda p: system(260, AT, p, user(p), user(p), 0),
    "fchownat by descriptor": lambda p: with_fd(p, lambda fd: system(260, fd, "", user(p), user(p), EMPTY), os.O_PATH),
    "utime": lambda p: system(132, p, times(p)[:8] + times(p)[16:24]),
    "utimes": lambda p: system(235, p, micros(p)),
    "futimesat": lambda p: system(261, AT, p, micros(p)),
    "utimensat": lambda p: system(280, AT, p, times(p), 0),
    "utimensat now": lambda p: system(280, AT, p, None, 0),
    "futimens": lambda p: with_fd(p, lambda fd: system(280, fd, None, times(p), 0)),
    "setxattr": lambda p: system(188, p, "user.kennel", b"x", 1, 0),
    "setxattr of an access list": lambda p: system(188, p, "system.posix_acl_access", access_list(p), len(access_list(p)), 0),
    "setxattr of trusted": lambda p: system(188, p, "trusted.kennel", b"x", 1, 0),
    "lsetxattr": lambda p: system(189, p, "user.kennel", b"x", 1, 0),
    "fsetxattr": lambda p: with_fd(p, lambda fd: system(190, fd, "user.kennel", b"x", 1, 0)),
    "removexattr": lambda p: system(197, p, "user.kept"),
    "lremovexattr": lambda p: system(198, p, "user.kept"),
    "fremovexattr": lambda p: with_fd(p, lambda fd: system(199, fd, "user.kept")),
    "setxattrat": lambda p: system(463, AT, p, 0, "user.kennel", struct.pack("QII", 0, 0, 0), 16),
    "removexattrat": lambda p: system(466, AT, p, 0, "user.kept"),
    "file_setattr": lambda p: system(469, AT, p, ctypes.create_string_buffer(24), 24, 0),
    "ioctl of flags": lambda p: with_fd(p, flags_of),
    "ioctl of the project": lambda p: with_fd(p, project_of),
    "rename": lambda p: system(82, p, p + ".gone"),
    "rename into the run": lambda p: system(82, p, own + "/taken"),
    "renameat2": lambda p: system(316, AT, p, AT, own + "/taken", 2),
    "rename over it": lambda p: (open(own + "/mine", "w").close(), system(82, own + "/mine", p)),
    "unlink": lambda p: system(87, p),
    "unlinkat of a directory": lambda p: system(263, AT, p, 0x200),
    "rmdir": lambda p: system(84, p),
    "link": lambda p: system(86, p, own + "/linked"),
    "linkat by descriptor": lambda p: with_fd(p, lambda fd: system(265, fd, "", AT, own + "/linked", EMPTY), os.O_PATH),
    "symlink below": lambda p: system(88, "/", p + "/made"),
    "mkdir below": lambda p: system(83, p + "/made", 0o700),
    "mknod below": lambda p: system(133, p + "/made", 0o100600, 0),
    "mknod of a device below": lambda p: system(133, p + "/made", 0o020600, os.makedev(1, 3)),
    "open to create below": lambda p: os.close(opened(p + "/made", os.O_CREAT | os.O_WRONLY)),
    "open to write": lambda p: os.close(opened(p, os.O_WRONLY)),
    "open to truncate": lambda p: os.close(opened(p, os.O_WRONLY | os.O_TRUNC)),
    "unnamed file": lambda p: os.close(opened(p, os.O_TMPFILE | os.O_WRONLY)),
    "truncate": lambda p: system(76, p, 0),
    "execve": lambda p: in_child(lambda: os.execv(p, ["x"])),
    "connect": connect,
    "bind": bind,
    "bind below": lambda p: bind(p + "/made"),
    "mount": lambda p: system(165, own, p, None, 4096, None),
    "umount2": lambda p: system(166, p, 2),
    "open_tree": lambda p: os.close(system(428, AT, p, 1)),
    "mount_setattr": lambda p: system(442, AT, p, 0, attributes(), 32),
    "pivot_root": lambda p: system(155, p, p),
    "swapon": lambda p: system(167, p, 0),
    "acct": lambda p: system(163, p),
    "quotactl": lambda p: system(179, 0x800002 << 8, p, 0, None),
    "fanotify_mark": lambda p: system(301, system(300, 0, 0), 1, 0x20, AT, p),
    "open_by_handle_at": lambda p: with_fd("/", lambda fd: os.close(system(304, fd, handle(p), 0))),
    "chmod by the keeper's root": lambda p: os.chmod(f"/proc/{keeper}/root{p}", mode(p, 0o777)),
    "chmod by the shim's root": lambda p: os.chmod(f"/proc/{os.getppid()}/root{p}", mode(p, 0o777)),
    "setns to the keeper": lambda p: in_child(lambda: (setns(keeper, NEWNS), system(90, p, mode(p)))),
    "umount below": lambda p: below(lambda: system(166, p, 2)),
    "mount_setattr below": lambda p: below(lambda: system(442, AT, p, 0, attributes(), 32)),
    "mount_setattr of all below": lambda p: below(lambda: system(442, AT, "/", 0x8000, attributes(), 32)),
    "chmod below": lambda p: below(lambda: system(90, p, mode(p))),
    "mount below": lambda p: below(lambda: system(165, own, p, None, 4096, None)),
}


def identity(status):
    return (status.st_dev, status.st_ino)


def watched(path):
    fd = system(294, 0)
    try:
        system(254, fd, path, 0xFFF)
        about = open(f"/proc/self/fdinfo/{fd}").read().split("inotify ")[1]
        fields = dict(field.split(":", 1) for field in about.split()[:3])
        device = int(fields["sdev"], 16)
        return (os.makedev(device >> 20, device & 0xFFFFF), int(fields["ino"], 16))
    finally:
        os.close(fd)


LOOKS = {
    "stat": lambda p: identity(os.stat(p)),
    "lstat": lambda p: identity(os.lstat(p)),
    "open and fstat": lambda p: with_fd(p, lambda fd: identity(os.fstat(fd))),
    "open of the path and fstat": lambda p: with_fd(p, lambda fd: identity(os.fstat(fd)), os.O_PATH),
    "inotify_add_watch": watched,
    "stat by the keeper's root": lambda p: identity(os.stat(f"/proc/{keeper}/root{p}")),
    "stat by the shim's root": lambda p: identity(os.stat(f"/proc/{os.getppid()}/root{p}")),
}

keeper = int(sys.argv[1])
words = sys.argv[2:]
objects = [(words[at], words[at + 1], (int(words[at + 2]), int(words[at + 3]))) for at in range(0, len(words), 4)]


def attempt(kind, call, name, done):
    try:
        result = done()
    except OSError as error:
        result = errno.errorcode.get(error.errno, str(error.errno))
    print("\t".join((kind, call, name, result)), flush=True)


def answered(call, path):
    call(path)
    return "did"


for name, path, real in objects:
    for word, call in CHANGES.items():
        attempt("change", word, name, lambda: answered(call, path))
    for word, call in LOOKS.items():
        attempt("look", word, name, lambda: "real" if call(path) == real else "cover")
# The descriptor may be of the host's own mount.
attempt("change", "fchmod", "/dev/null", lambda: answered(lambda fd: os.fchmod(fd, 0o666), 0))
attempt("change", "futimens", "/dev/null", lambda: answered(lambda fd: os.utime(fd, ns=(os.stat(fd).st_atime_ns, os.stat(fd).st_mtime_ns)), 0))
