"""Starts a trainer, behind its wall where there is one. It is part of the shim: standard library only.

The process that will be the trainer is there before anything is to run. It is told its order, does everything but the
last step, and waits for the command to go; only then the trainer's program is executed in its place. A wall of
namespaces may even stand before the order is known: then the order names what is to be added to it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import select
import signal
import socket
import struct
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
KILLED = "it was killed before it could start"
NO_WALL = "cannot separate the job from this machine"
LACKING = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
"""What this machine lacks for now: disk space, descriptors, memory or processes."""
LACKS = "\1"
"""A problem that comes of it begins so: it is no fault of the job."""
DONE, GO = b"\0", b"!"
CREDENTIALS = struct.Struct("=iII")
"""Process, user and group of whoever has written, as the kernel tells them."""
on_linux = sys.platform == "linux"
libc = ctypes.CDLL(None, use_errno=True)


class Starting:
    """Represents a trainer that is being started, as the shim sees it."""

    def __init__(
        self,
        pid: int,
        keeper_pid: int,
        words: int,
        problems: socket.socket,
        status: int,
        lifeline: int,
        entered: str,
    ) -> None:
        self.pid = pid
        """Of the process that stands for the trainer and tells its status: the first one behind a wall of namespaces,
        else its keeper. Elsewhere than on Linux it is the trainer's own, and nothing is told."""
        self.keeper_pid = keeper_pid
        self.trainer_pid = 0
        """Of the trainer to be itself, once it stands behind its wall; elsewhere than on Linux it stays unknown."""
        self.status = status
        self.lifeline = lifeline
        """Its end tells the keeper that the shim has died; all that is written to it is the name of the control group."""
        self.entered = entered
        """The control group that it is in before it knows its order."""
        self.words, self.problems = words, problems
        self.problem: str | None = None
        """What kept it from standing behind its wall; '' once it does."""

    def await_wall(self) -> str:
        """Waits until it stands behind its wall: then what is shown there may be moved. Returns what kept it from that."""
        if self.problem is None:
            said, writer_pid = heard_from(self.problems)
            self.problem = ""
            if said == DONE:
                self.trainer_pid = writer_pid
            else:
                self.problem = (said.decode(errors="replace") + self.read_problem()) or KILLED
        return self.problem

    def prepare(self, order: dict[str, Any], added: list[Any]) -> None:
        """Has everything done but the last step; `added` are more places. What goes wrong is told by `go`."""
        if self.await_wall():
            return
        needed = {name: order[name] for name in ("argv", "env", "cwd", "output", "wall")}
        group = order.get("cgroup", "")
        to_enter = "" if group == self.entered else group
        text = json.dumps({**needed, "cgroup": to_enter, "added": added}).encode()
        try:
            # The keeper was there before the order: it has to know the group before anything is in there.
            if self.keeper_pid and group:
                os.write(self.lifeline, os.fsencode(group))
            for part in (len(text).to_bytes(8, "big"), text):
                while part:
                    part = part[os.write(self.words, part) :]
        except OSError:
            self.problem = self.read_problem() or KILLED

    def go(self) -> str:
        """Executes the trainer; returns what kept it from that, or ''."""
        if self.problem:
            return self.problem
        try:
            os.write(self.words, GO)
        except OSError:
            return self.read_problem() or KILLED
        return self.read_problem()

    def read_problem(self) -> str:
        """Reads until the end, which comes as soon as execve has closed the other side."""
        text = b""
        while part := self.problems.recv(65536):
            text += part
        self.problems.close()
        self.give_up()
        return text.decode(errors="replace")

    def trainer_status(self) -> int | None:
        """Returns the trainer's own status, where another process stands for it and has told it."""
        try:
            relayed = os.read(self.status, 4) if self.status >= 0 else b""
        except BlockingIOError:
            return None
        if len(relayed) == 4:
            return int.from_bytes(relayed, sys.byteorder)
        self.status = -1  # it was killed, and the kernel says with what
        return None

    def give_up(self) -> None:
        """Ends what still waits for the command to go, also where there are no descriptors left to look for it."""
        if self.words >= 0:
            os.close(self.words)
        self.words = -1


def heard_from(line: socket.socket) -> tuple[bytes, int]:
    """Reads what is there, and who has written it: a process behind a wall does not know its number out here."""
    text, ancillary, _, _ = line.recvmsg(65536, socket.CMSG_SPACE(CREDENTIALS.size))
    pids = [
        CREDENTIALS.unpack(data)[0]
        for level, kind, data in ancillary
        if on_linux and (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS)
    ]
    return text, pids[0] if pids else 0


def begin(wall: dict[str, Any] | None, walls: ModuleType | None, cgroup: str = "") -> Starting:
    """Forks the process that will be the trainer, behind its wall and in its group; what it does it is told later."""
    problems, problem_socket = socket.socketpair()
    problem = problem_socket.detach()
    if on_linux:
        problems.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    status_read, status_write = os.pipe()
    hears, words = os.pipe()
    os.set_blocking(status_read, False)
    try:
        if walls and wall:
            walls.separate(wall)
    except OSError as error:
        tell(problem, trouble(NO_WALL, error))
        for descriptor in (problem, status_write, hears):
            os.close(descriptor)
        return Starting(0, 0, words, problems, status_read, -1, "")
    if on_linux:  # what it was told, secrets among it, is in its memory
        libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    __import__("shim_cgroup")  # behind a wall its file has no name any more
    lifeline_read, lifeline_write = os.pipe()
    shim_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        problems.close()
        for descriptor in (lifeline_write, words, status_read):
            os.close(descriptor)
        start_child(wall, walls, cgroup, hears, problem, status_write, lifeline_read, shim_pid)
    for descriptor in (problem, status_write, hears, lifeline_read):
        os.close(descriptor)
    keeper_pid = pid if has_keeper(wall) else 0
    entered = cgroup if has_own_root(wall) else ""
    return Starting(pid, keeper_pid, words, problems, status_read, lifeline_write, entered)


def has_keeper(wall: dict[str, Any] | None) -> bool:
    """Returns whether a keeper is needed. Behind a wall of namespaces the kernel ends all with the first process.

    That process dies with the shim.
    """
    return on_linux and not has_own_root(wall)


def has_own_root(wall: dict[str, Any] | None) -> bool:
    return wall is not None and wall["kind"] != "landlock"


def start_child(
    wall: dict[str, Any] | None,
    walls: ModuleType | None,
    cgroup: str,
    hears: int,
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
        if has_keeper(wall):
            keep(walls, hears, problem, status, lifeline)
        if walls and wall:
            first_process(wall, walls, cgroup, hears, problem, status)
        become_trainer(walls, hears, problem)
    finally:
        os._exit(127)


def keep(walls: ModuleType | None, hears: int, problem: int, status: int, lifeline: int) -> NoReturn:
    """Runs the second guardian: should the first one be killed, nothing of the trainer is left behind all the same.

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
    try:
        trainer = os.fork()
    except OSError as error:
        tell(problem, trouble("cannot start a process", error))
        os._exit(127)
    if trainer == 0:
        signal.set_wakeup_fd(-1)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != keeper_pid:
            os._exit(127)
        become_trainer(walls, hears, problem)
    kept = sorted((status, lifeline, wakeups, wakeup))
    for before, after in zip([-1, *kept], [*kept, MOST_DESCRIPTORS], strict=True):
        os.closerange(before + 1, after)
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    poll.register(wakeups, select.POLLIN)
    group = b""
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if lifeline in ready:
            more = os.read(lifeline, 4096)
            if not more:
                break
            group += more
        if wakeups in ready:
            os.read(wakeups, 4096)
        reap(trainer, status)
    leave_nothing(keeper_pid, os.fsdecode(group))
    os._exit(0)


def join_cgroup(group: str, wall: dict[str, Any] | None, problem: int) -> None:
    """Enters the control group. What guards the trainer stays outside, and lives on when the group is ended."""
    if not group:
        return
    root = "/old" if has_own_root(wall) else ""
    try:
        __import__("shim_cgroup").join(f"{root}{group}")
    except OSError as error:
        tell(problem, trouble("cannot put the job into its control group", error))
        os._exit(127)


def reap(trainer: int, status: int) -> None:
    """Tells how the trainer ended, and ends once nothing that it has left behind is there either.

    The shim ends that. Should it die just then, and there were nobody left here, it would go on unguarded.
    """
    with contextlib.suppress(ChildProcessError):
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
        with contextlib.suppress(OSError):  # looked for again in a moment
            for pid in tree.descendants(keeper_pid):
                tree.send_signal(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def first_process(
    wall: dict[str, Any], walls: ModuleType, cgroup: str, hears: int, problem: int, status: int
) -> NoReturn:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        walls.leave_namespaces()
        trainer = os.fork()
        if trainer == 0:
            walls.enter(wall)
    except OSError as error:
        tell(problem, trouble(NO_WALL, error))
        os._exit(127)
    if trainer == 0:
        join_cgroup(cgroup, wall, problem)
        become_trainer(walls, hears, problem)
    os.closerange(0, status)
    os.closerange(status + 1, MOST_DESCRIPTORS)
    walls.reap_until_trainer_ends(trainer, status)
    os._exit(0)


def become_trainer(walls: ModuleType | None, hears: int, problem: int) -> NoReturn:
    tell(problem, DONE)
    order = read_order(hears)
    join_cgroup(order["cgroup"], order["wall"], problem)
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        open_output(order, problem)
        if walls and order["wall"]:
            move_in(order, walls, problem)
        os.chdir(order["cwd"])
        if os.read(hears, 1) == GO:
            os.execvpe(order["argv"][0], order["argv"], order["env"])
    except (OSError, ValueError) as error:
        where = (
            order["cwd"]
            if isinstance(error, OSError) and error.filename == order["cwd"]
            else order["argv"][0]
        )
        hint = HINT if order["wall"] and isinstance(error, OSError) and error.errno in UNSEEN else ""
        tell(problem, f"{trouble(f'cannot start {where!r}', error)}{hint}")
    finally:
        os._exit(127)


def read_order(hears: int) -> dict[str, Any]:
    """Reads the order and no byte more: the command to go may be there already."""
    order: dict[str, Any] = json.loads(read_exactly(hears, int.from_bytes(read_exactly(hears, 8), "big")))
    return order


def read_exactly(hears: int, count: int) -> bytes:
    """Ends the process where less comes: the shim has died, or nobody needs it any more."""
    text = b""
    while len(text) < count:
        part = os.read(hears, count - len(text))
        if not part:
            os._exit(127)
        text += part
    return text


def open_output(order: dict[str, Any], problem: int) -> None:
    """Opens the output, which goes straight to a file: no pipe of ours can ever block the trainer."""
    root = "/old" if has_own_root(order["wall"]) else ""
    try:
        output = os.open(f"{root}{order['output']}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        tell(problem, trouble(f"cannot open {order['output']!r}", error))
        os._exit(127)
    nothing = os.open(f"{root}{os.devnull}", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)


def move_in(order: dict[str, Any], walls: ModuleType, problem: int) -> None:
    """Gives up, behind the wall, whatever lies beyond it."""
    try:
        if has_own_root(order["wall"]):
            walls.close_behind(order["wall"], order["added"])
        walls.become_nobody(order["wall"])
    except OSError as error:
        tell(problem, trouble(NO_WALL, error))
        os._exit(127)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # a change of user has cleared it


def trouble(what: str, error: OSError | ValueError) -> str:
    """Says what went wrong and why; where this machine lacks something for it, that is marked."""
    if not isinstance(error, OSError):
        return f"{what}: {error}"
    return f"{LACKS if error.errno in LACKING else ''}{what}: {error.strerror or error}"


def tell(problem: int, text: str | bytes) -> None:
    os.write(problem, text if isinstance(text, bytes) else text.encode(errors="replace"))
