"""The part of the shim that starts a trainer, behind its wall where the order has one: standard library only."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, NoReturn

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
MOST_DESCRIPTORS = 65536
UNSEEN = (errno.ENOENT, errno.EACCES)
HINT = " (jobs of this worker see only what its owner grants: --job-path)"
on_linux = sys.platform == "linux"
libc = ctypes.CDLL(None, use_errno=True)


def launch(order: dict[str, Any], walls: ModuleType | None) -> tuple[int, int, int, str]:
    """Forks and executes the trainer; returns two pids, where its status will be told, and what kept it from starting.

    Its output goes straight to a file: no pipe of ours can ever block it. The first pid is that of the process that stands
    for the trainer and tells its status: the first one behind a wall of namespaces, else its keeper, whose pid is also
    the second one. Elsewhere than on Linux it is the trainer's own, and nothing is told.
    """
    try:
        output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        return 0, 0, -1, f"cannot open {order['output']!r}: {error.strerror}"
    try:
        if walls:
            walls.separate(order["wall"])
    except OSError as error:
        os.close(output)
        return 0, 0, -1, f"cannot separate the job from this machine: {error.strerror}"
    if on_linux:  # what it was told, secrets among it, is in its memory
        libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    problem_read, problem_write = os.pipe()
    status_read, status_write = os.pipe()
    os.set_blocking(status_read, False)
    lifeline_read, lifeline_write = (
        os.pipe()
    )  # nobody ever writes: its end tells the keeper that the shim has died
    shim_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(lifeline_write)
        start_child(order, walls, output, problem_write, status_write, lifeline_read, shim_pid)
    for descriptor in (output, problem_write, status_write, lifeline_read):
        os.close(descriptor)
    problem = os.read(problem_read, 65536)  # the end of the file, as soon as execve has closed the other side
    os.close(problem_read)
    return pid, pid if has_keeper(order) else 0, status_read, problem.decode(errors="replace")


def has_keeper(order: dict[str, Any]) -> bool:
    """Behind a wall of namespaces the kernel ends everything with the first process, which dies with the shim."""
    return on_linux and (not order.get("wall") or order["wall"]["kind"] == "landlock")


def start_child(
    order: dict[str, Any],
    walls: ModuleType | None,
    output: int,
    problem: int,
    status: int,
    lifeline: int,
    shim_pid: int,
) -> NoReturn:
    """Runs in the forked child, and never returns, whatever happens."""
    try:
        if on_linux:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # Of a parent in another process table nothing is known: it has the number 0.
        if os.getppid() not in (shim_pid, 0):
            os._exit(127)
        if has_keeper(order):
            keep(order, walls, output, problem, status, lifeline)
        join_cgroup(order, problem)
        if walls:
            first_process(order, walls, output, problem, status)
        become_trainer(order, walls, output, problem)
    finally:
        os._exit(127)


def keep(
    order: dict[str, Any], walls: ModuleType | None, output: int, problem: int, status: int, lifeline: int
) -> NoReturn:
    """The second guardian: should the first one be killed, nothing of the trainer is left behind all the same.

    It is an ancestor of every process of the tree, whatever that does to its session or its environment.
    """
    libc.prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)  # it has something to do when the shim dies
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.setsid()
    wakeups, wakeup = os.pipe()
    for descriptor in (wakeups, wakeup):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    keeper_pid = os.getpid()
    trainer = os.fork()
    if trainer == 0:
        signal.set_wakeup_fd(-1)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != keeper_pid:
            os._exit(127)
        join_cgroup(order, problem)
        become_trainer(order, walls, output, problem)
    kept = sorted((status, lifeline, wakeups, wakeup))
    for before, after in zip([-1, *kept], [*kept, MOST_DESCRIPTORS], strict=True):
        os.closerange(before + 1, after)
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    poll.register(wakeups, select.POLLIN)
    while lifeline not in {descriptor for descriptor, _ in poll.poll()}:
        os.read(wakeups, 4096)
        reap(trainer, status)
    leave_nothing(keeper_pid, order.get("cgroup", ""))
    os._exit(0)


def join_cgroup(order: dict[str, Any], problem: int) -> None:
    """What guards the trainer stays outside, and lives on when the group is ended."""
    if not order.get("cgroup"):
        return
    try:
        __import__("shim_cgroup").join(order["cgroup"])
    except OSError as error:
        tell(problem, f"cannot put the job into its control group: {error.strerror}")
        os._exit(127)


def reap(trainer: int, status: int) -> None:
    """Ends with the trainer: what that has left behind is the shim's from then on."""
    while True:
        pid, how = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        if pid == trainer:
            os.write(status, how.to_bytes(4, sys.byteorder))
            os._exit(0)


def leave_nothing(keeper_pid: int, group: str) -> None:
    tree = __import__("shim_tree")
    while True:
        if group:
            __import__("shim_cgroup").end_all(group)
        for pid in tree.descendants(keeper_pid):
            tree.send_signal(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def first_process(
    order: dict[str, Any], walls: ModuleType, output: int, problem: int, status: int
) -> NoReturn:
    try:
        walls.enter(order["wall"])
    except OSError as error:
        tell(problem, f"cannot separate the job from this machine: {error.strerror or error}")
        os._exit(127)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    trainer = os.fork()
    if trainer == 0:
        become_trainer(order, walls, output, problem)
    os.closerange(0, status)
    os.closerange(status + 1, MOST_DESCRIPTORS)
    walls.keep_house(trainer, status)
    os._exit(0)


def become_trainer(order: dict[str, Any], walls: ModuleType | None, output: int, problem: int) -> NoReturn:
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        if walls:
            walls.become_nobody(order["wall"])
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # a change of user has cleared it
        os.chdir(order["cwd"])
        os.execvpe(order["argv"][0], order["argv"], order["env"])
    except (OSError, ValueError) as error:
        where = (
            order["cwd"]
            if isinstance(error, OSError) and error.filename == order["cwd"]
            else order["argv"][0]
        )
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        hint = HINT if walls and isinstance(error, OSError) and error.errno in UNSEEN else ""
        tell(problem, f"cannot start {where!r}: {why}{hint}")
    finally:
        os._exit(127)


def tell(problem: int, text: str) -> None:
    os.write(problem, text.encode(errors="replace"))
