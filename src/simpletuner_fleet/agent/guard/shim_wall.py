"""Builds the wall around one trainer as the order says. It is part of the shim: standard library only, Linux only.

There are two kinds with namespaces and one with rules. `user`: root gives the trainer a user of its own. `namespace`:
the same isolation without root, in a user namespace. Both give it a root folder that holds what was granted and
nothing else, and a process table of its own, whose first process is `reap_until_trainer_ends` below: when that ends,
the kernel ends all others. `landlock`: the trainer keeps its user and sees every name, but opens only what was
granted.
"""

from __future__ import annotations

import ctypes
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID = 0x20000, 0x8000000, 0x10000000, 0x20000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
SYS_MOUNT_SETATTR = 442
SYS_KEYCTL = {"x86_64": 250, "aarch64": 219}
KEYCTL_JOIN_SESSION_KEYRING = 1
SYS_LANDLOCK_CREATE, SYS_LANDLOCK_ADD, SYS_LANDLOCK_RESTRICT = 444, 445, 446
LANDLOCK_VERSION = 1
PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 4, 24, 38
CAPABILITIES = 64

READ_RIGHTS = 0b1101
"""Execute a file, read a file, list a folder."""
FILE_RIGHTS = 0b111 | 1 << 14 | 1 << 15
"""Those that make sense for what is no folder: the former, write, truncate, control a device."""
ALL_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
"""How many rights each version of the interface knows; later ones 16."""
SCOPES = 0b11
"""Since version 6: no signal and no abstract socket reaches beyond the wall."""

DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "dri", "kfd", "infiniband", "dxg", "accel")
DEVICE_BEGINNINGS = ("nvidia", "habana", "davinci")
LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1"}
LINKS |= {"stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx"}
TOP_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")

libc = ctypes.CDLL(None, use_errno=True)


class WallError(OSError):
    """A step of building the wall failed; the message says which."""


def checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise WallError(number, f"{what}: {os.strerror(number)}")
    return result


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    data = None if options is None else options.encode()
    checked(libc.mount(*words, ctypes.c_ulong(flags), data), f"mount {target}")


def set_flags(target: str, flags: int, recursive: int = AT_RECURSIVE) -> None:
    """Sets flags of a mount: read-only, no set-uid programs, no devices. They can only be added."""
    attributes = struct.pack("=4Q", flags, 0, 0, 0)
    result = libc.syscall(
        SYS_MOUNT_SETATTR,
        AT_FDCWD,
        os.fsencode(target),
        recursive,
        attributes,
        ctypes.c_size_t(len(attributes)),
    )
    checked(result, f"mount_setattr {target}")


def pivot_root(new: str, old: str) -> None:
    number = SYS_PIVOT_ROOT.get(os.uname().machine, -1)
    checked(libc.syscall(number, os.fsencode(new), os.fsencode(old)), "pivot_root")


def separate(wall: dict[str, Any]) -> None:
    """Runs in the shim: what it forks next is the first process of a process table of its own."""
    if wall["kind"] == "user":
        checked(libc.unshare(CLONE_NEWPID), "unshare")
    elif wall["kind"] == "namespace":
        uid, gid = os.getuid(), os.getgid()
        libc.prctl(
            PR_SET_DUMPABLE, 1, 0, 0, 0
        )  # the maps below are root's while it is not; whoever calls ends that
        checked(libc.unshare(CLONE_NEWUSER | CLONE_NEWPID), "unshare")
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)


def leave_namespaces() -> None:
    """Runs in the first process."""
    checked(libc.unshare(CLONE_NEWNS | CLONE_NEWIPC), "unshare")


def enter(wall: dict[str, Any]) -> None:
    """Runs in the trainer's process: puts up all that is known before the job is. The machine's own root stays at /old."""
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755")
    os.mkdir("/tmp/old")
    os.mkdir("/tmp/new")
    pivot_root("/tmp", "/tmp/old")
    os.chdir("/")
    mount("tmpfs", "/new", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755")
    keep_links()
    for source, target, access in wall["places"]:
        grant(source, target, access, wall)
    make_devices()
    os.makedirs("/new/proc", exist_ok=True)
    mount("proc", "/new/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)


def close_behind(wall: dict[str, Any], added: list[tuple[str, str, str]]) -> None:
    """Adds the last places, in the trainer's process; from here on only what was granted has a name."""
    for source, target, access in added:
        grant(source, target, access, wall)
    os.chdir("/new")
    pivot_root(".", ".")
    checked(libc.umount2(b".", MNT_DETACH), "umount")
    os.chdir("/")
    set_flags("/", MS_RDONLY, recursive=0)


def keep_links() -> None:
    """Recreates the links of the system's root: most systems have /bin as a link to /usr/bin."""
    for name in TOP_LINKS:
        if os.path.islink(f"/old/{name}"):
            os.symlink(os.readlink(f"/old/{name}").lstrip("/"), f"/new/{name}")


def grant(source: str, target: str, access: str, wall: dict[str, Any]) -> None:
    """Grants `ro` or `rw`; `hide` puts an empty folder in its place.

    `room` does the same, and makes one where there is none, for what comes later.
    Call it in the order of depth, so that the deeper says more.
    """
    place = f"/new{target}"
    if access == "room":
        make_place(place, True, wall)
    if access in ("hide", "room"):
        if os.path.isdir(place):
            mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=1m")
        elif os.path.exists(place):
            mount("/old/dev/null", place, None, MS_BIND)
        return
    if not os.path.exists(f"/old{source}"):
        return
    make_place(place, os.path.isdir(f"/old{source}"), wall)
    mount(f"/old{source}", place, None, MS_BIND | MS_REC)
    set_flags(place, (MS_RDONLY if access == "ro" else 0) | MS_NOSUID | MS_NODEV)


def make_place(place: str, is_folder: bool, wall: dict[str, Any]) -> None:
    """Creates the target of a grant. Within the job's own home it belongs to the job, which may write beside it."""
    folder = place if is_folder else os.path.dirname(place)
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for one in reversed(missing):
        os.mkdir(one, 0o755)
        if wall["uid"] is not None and wall["home"] and one.startswith(f"/new{wall['home']}/"):
            os.chown(one, wall["uid"], wall["gid"])
    if not is_folder and not os.path.exists(place):
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT, 0o644))


def make_devices() -> None:
    """Shows those that every program knows, and accelerators. Shared memory and terminals are the job's own."""
    os.makedirs("/new/dev", exist_ok=True)
    mount("tmpfs", "/new/dev", "tmpfs", MS_NOSUID, "mode=0755,size=1m")
    for path in device_paths("/old/dev"):
        place = f"/new/dev/{os.path.basename(path)}"
        if os.path.isdir(path):
            os.mkdir(place)
        else:
            os.close(os.open(place, os.O_WRONLY | os.O_CREAT, 0o644))
        mount(path, place, None, MS_BIND | MS_REC)
    for name, target in LINKS.items():
        os.symlink(target, f"/new/dev/{name}")
    os.mkdir("/new/dev/shm")
    mount("tmpfs", "/new/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    os.mkdir("/new/dev/pts")
    mount("devpts", "/new/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620")


def device_paths(dev: str) -> list[str]:
    return [
        f"{dev}/{name}"
        for name in sorted(os.listdir(dev))
        if name in DEVICES or name.startswith(DEVICE_BEGINNINGS)
    ]


def reap_until_trainer_ends(trainer: int, status_pipe: int) -> None:
    """Runs as the first process of the trainer's own process table: takes in its orphans, and ends with it.

    It tells the trainer's status before: as the first it cannot die of the same signal.
    """
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            return
        if pid == trainer:
            os.write(status_pipe, struct.pack("=i", status))
            return


def become_nobody(wall: dict[str, Any]) -> None:
    """Gives up, in the trainer's process and after all else, the rights that cannot be had again."""
    leave_keyrings()
    for capability in range(CAPABILITIES):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    if wall["uid"] is not None:
        os.setgroups(wall["groups"])
        os.setresgid(wall["gid"], wall["gid"], wall["gid"])
        os.setresuid(wall["uid"], wall["uid"], wall["uid"])
    checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    if wall["kind"] == "landlock":
        restrict(wall["places"])


def leave_keyrings() -> None:
    """Leaves the worker's session keyring, whose keys anyone who inherits it could read.

    A kernel or container may have none.
    """
    libc.syscall(SYS_KEYCTL.get(os.uname().machine, -1), KEYCTL_JOIN_SESSION_KEYRING, None)


def landlock_version() -> int:
    """Returns Landlock's version; 0 where the kernel has none, or a container does not let it be asked."""
    return max(0, int(libc.syscall(SYS_LANDLOCK_CREATE, None, ctypes.c_size_t(0), LANDLOCK_VERSION)))


def restrict(places: list[tuple[str, str, str]]) -> None:
    version = landlock_version()
    if not version:
        raise WallError(0, "landlock: this kernel has none")
    every = (1 << ALL_RIGHTS.get(version, 16)) - 1
    fields = (every,) if version < 4 else (every, 0) if version < 6 else (every, 0, SCOPES)
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    rules = checked(
        libc.syscall(SYS_LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0), "landlock"
    )
    granted = [(source, access) for source, _, access in places if access != "hide"]
    granted += [("/proc", "ro"), ("/dev/shm", "rw"), *((path, "rw") for path in device_paths("/dev"))]
    for path, access in granted:
        allow(rules, path, every if access == "rw" else READ_RIGHTS & every, every)
    checked(libc.syscall(SYS_LANDLOCK_RESTRICT, rules, 0), "landlock")
    os.close(rules)


def allow(rules: int, path: str, rights: int, every: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):  # not there, or closed to the trainer's own user anyway
        return
    try:
        if not os.path.isdir(path):
            rights &= FILE_RIGHTS & every
        rule = struct.pack("=Qi", rights, descriptor)
        checked(libc.syscall(SYS_LANDLOCK_ADD, rules, 1, rule, 0), f"landlock {path}")
    finally:
        os.close(descriptor)
