"""Guards one attempt: starts the trainer, enforces its lease, and never leaves a process of it behind.

It is a process of its own, forked by `shim_zygote.py` or run as `python -I -S shim.py` with one end of a socket pair
as stdin; it imports only the standard library and the files `shim_*.py` beside it, and starts before it is needed.
Lines of JSON go both ways. Its life depends on the agent at the other end: without one it waits a moment for a new
agent on `shim.sock`, then ends the tree and reports by itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import time

TYPE_CHECKING = False  # importing `typing` at run time would cost a quarter of the start
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

PR_SET_CHILD_SUBREAPER = 36
LONGEST_NAP_S = 1.0
"""A timer stands still while the machine is suspended, so a deadline is looked at this often at least."""
MAX_LINE_BYTES = 16 * 1024 * 1024

on_linux = sys.platform == "linux"
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
libc = ctypes.CDLL(None, use_errno=True)
HERE = os.path.dirname(os.path.abspath(__file__))
PARTS = ("shim_files", "shim_tree", "shim_trainer", "shim_cgroup", "shim_report", "shim_wall")


def part(name: str) -> ModuleType:
    """Loads a file beside this one. That one is compiled already and this one is not, so what may wait stands there."""
    if HERE not in sys.path:
        sys.path.append(HERE)
    return __import__(name)


def boottime() -> float:
    """Returns seconds that go on while the machine sleeps: a lease is over after a long suspend."""
    return time.clock_gettime(CLOCK)


class Shim:
    def __init__(self, agent: socket.socket) -> None:
        self.agent: socket.socket | None = agent
        self.listener: socket.socket | None = None
        self.unread = b""
        self.held: dict[str, Any] = {}
        """An order that is carried out but for its last step."""
        self.order: dict[str, Any] = {}
        """The same, once its trainer may run."""
        self.problem = ""
        """What keeps this machine from starting it."""
        self.starting: Any = None
        """The process that will be the trainer (`shim_trainer.Starting`)."""
        self.held_pid = 0
        self.held_ticks: int | None = None
        """Of the trainer to be: it may have ended by the time somebody looks."""
        self.trainer_pid = 0
        """Of the process that stands for the trainer here: its keeper, or the first one behind a wall of namespaces."""
        self.keeper_pid = 0
        """Of the second guardian, while there is one: it ends by itself, after the last of the tree, and is sent nothing."""
        self.shown_pid = 0
        """Of the trainer itself, as this machine counts."""
        self.trainer_status: int | None = None
        self.exit: dict[str, Any] | None = None
        self.reason, self.blame = "exited", "unclear"
        self.outcome = "lost"
        self.lease_until: float | None = None
        self.time_limit_at: float | None = None
        self.out_of_time = False
        self.alone_until: float | None = None
        self.kill_at: float | None = None
        self.killing = False
        self.kill_pause_s = 0.001
        self.paused = False
        self.done = False
        self.files, self.tree = part("shim_files"), part("shim_tree")
        self.wake_read, wake_write = os.pipe()
        os.set_blocking(self.wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def serve(self) -> None:
        while not self.done:
            self.listen_until_something_happens()
            if self.order:
                self.reap()
                self.mind_the_clock()

    # The agent's side

    def listen_until_something_happens(self) -> None:
        poll = select.poll()
        poll.register(self.wake_read, select.POLLIN)
        lifeline = self.agent or self.listener  # a new agent is met once the old one is gone
        if lifeline is not None:
            poll.register(lifeline, select.POLLIN)
        status = (
            self.starting.status if self.order and self.keeper_pid and self.trainer_status is None else -1
        )
        if status >= 0:
            poll.register(status, select.POLLIN)
        nap_s = self.nap_s()
        ready = {fd for fd, _ in poll.poll(None if nap_s is None else int(nap_s * 1000) + 1)}
        if self.wake_read in ready:
            os.read(self.wake_read, 4096)
        if status in ready:
            self.hear_of_the_end()
        if lifeline is not None and lifeline.fileno() in ready:
            self.hear() if lifeline is self.agent else self.meet_new_agent()

    def hear(self) -> None:
        assert self.agent is not None
        try:
            data = self.agent.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or len(self.unread) > MAX_LINE_BYTES:
            self.lose_agent()
            return
        *lines, self.unread = (self.unread + data).split(b"\n")
        for line in lines:
            self.obey(json.loads(line))

    def obey(self, message: dict[str, Any]) -> None:
        match message["do"]:
            case "build" if self.starting is None:
                self.build(message["wall"], message["cgroup"])
            case "hold" if not self.held:
                self.hold(message)
            case "go" if self.held and not self.order:
                self.go(message["lease_s"], message["leased_at"])
            case "renew":
                self.lease_until = message["until"]
            case "stop":
                self.outcome = message.get("outcome", self.outcome)
                self.end("stopped", message["grace_s"])
            case "release" if self.exit is not None:
                self.done = True
            case "status":
                self.tell_status("status")

    def tell(self, event: str, **facts: Any) -> None:
        """Never waits: an agent that does not read is no better than one that is gone."""
        if self.agent is None:
            return
        try:
            self.agent.sendall(json.dumps({"event": event, **facts}).encode() + b"\n")
        except OSError:
            self.lose_agent()

    def tell_status(self, event: str, **more: Any) -> None:
        self.tell(event, pid=self.shown_pid or None, paused=self.paused, exit=self.exit, **more)

    def lose_agent(self) -> None:
        if self.agent is not None:
            self.agent.close()
        self.agent, self.unread = None, b""
        if not self.order:
            self.done = True
            return
        self.alone_until = boottime() + self.order["adopt_grace_s"]

    def meet_new_agent(self) -> None:
        assert self.listener is not None
        self.agent = self.files.met(self.listener, self.order.get("key", ""))
        if self.agent is None:
            return
        self.alone_until = None
        # What is hidden may be more than the socket holds: this once it waits for the agent to read.
        self.agent.settimeout(self.files.GREETING_TIMEOUT_S)
        hidden = self.order.get("hidden", [])
        self.tell_status("hello", hidden=hidden, out_of_time=self.out_of_time, deadlines=self.deadlines())
        if self.agent is not None:
            self.agent.setblocking(False)

    def deadlines(self) -> dict[str, Any]:
        ordered = {name: self.order[name] for name in ("on_partition", "time_limit_save_s", "kill_grace_s")}
        return {**ordered, "lease_until": self.lease_until, "time_limit_at": self.time_limit_at}

    # The trainer's side

    def build(self, wall: dict[str, Any], cgroup: str) -> None:
        """Builds the wall before there is an order. It ends the shim where that fails.

        Whoever asked starts another one, and learns the reason with the order.
        """
        self.begin(wall, cgroup)
        if self.starting.await_wall():
            self.done = True
        else:
            self.tell("built")

    def begin(self, wall: dict[str, Any] | None, cgroup: str = "") -> None:
        walls = part("shim_wall") if wall else None
        self.starting = part("shim_trainer").begin(wall, walls, cgroup)
        self.trainer_pid, self.keeper_pid = self.starting.pid, self.starting.keeper_pid

    def hold(self, order: dict[str, Any]) -> None:
        """Has everything done but the last step. A failure is told at the start: nobody waits for it."""
        os.chdir(order["attempt_dir"])
        self.held = order
        added = order["wall"]["places"] if self.starting and order["wall"] else []
        try:
            if self.starting is None:
                self.begin(order["wall"])
            self.starting.prepare(order, added)
        except OSError as error:
            self.problem = part("shim_trainer").trouble("cannot start a process", error)
        if on_linux and self.trainer_pid:
            self.held_pid = self.starting.trainer_pid or self.trainer_pid
            self.held_ticks = self.tree.start_ticks(self.held_pid)
        self.tell("held")

    def go(self, lease_s: float | None, leased_at: float | None) -> None:
        if not self.files.claim():
            self.done = True
            return
        self.order = self.held
        begun_at = boottime()
        self.files.keep_own_errors()
        self.listen()  # before it runs: what no new agent could take up must not run
        if lease_s is not None:
            self.lease_until = (leased_at or begun_at) + lease_s
            if begun_at >= self.lease_until and self.order["on_partition"] != "continue":
                # The agent was frozen after the acceptance, and the job may run elsewhere by now.
                self.never_start("fenced", "the lease had run out before the trainer was started")
                return
        problem = self.problem or self.starting.go()
        if self.order["time_limit_s"] is not None:
            self.time_limit_at = begun_at + self.order["time_limit_s"]
        if problem:
            self.never_start("start_failed", problem)
            return
        self.shown_pid = self.held_pid or self.trainer_pid
        # No fsync: after a power cut there is no trainer to be found either.
        trainer = {"pid": self.shown_pid, "start_ticks": self.held_ticks}
        self.files.note(self.files.write_whole, "trainer.json", trainer)
        self.tell("started", pid=self.shown_pid)

    def listen(self) -> None:
        try:
            self.listener = self.files.listen()
        except OSError as error:
            self.problem = self.problem or part("shim_trainer").trouble("cannot make shim.sock", error)

    def never_start(self, reason: str, problem: str) -> None:
        if self.starting:
            self.starting.give_up()
        self.leave_nothing()
        lacks = part("shim_trainer").LACKS
        self.reason, self.blame = reason, "worker" if problem.startswith(lacks) else "unclear"
        self.finish(None, None, problem.removeprefix(lacks))

    def reap(self) -> None:
        while self.exit is None:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                self.finish_with(self.trainer_status)
                return
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                if pid == self.trainer_pid and not self.paused:  # nobody would tell how the trainer ends
                    self.tree.send_signal(pid, signal.SIGCONT)
            elif pid == self.trainer_pid:
                self.keeper_pid = 0
                if self.trainer_status is None:
                    relayed = self.starting.trainer_status()
                    self.trainer_has_ended(status if relayed is None else relayed)

    def hear_of_the_end(self) -> None:
        """Hears of it from the second guardian, which stays while the trainer has left something behind."""
        status = self.starting.trainer_status()
        if status is not None:
            self.trainer_has_ended(status)

    def trainer_has_ended(self, status: int) -> None:
        self.trainer_status = status
        if self.kill_at is None:
            self.killing = True  # what it left behind ends with it

    def finish_with(self, status: int | None) -> None:
        """Finishes: no child is left, and a subreaper's orphans are its children, so the whole tree is gone."""
        limit = None
        if self.order.get("cgroup") and self.reason == "exited":
            limit = part("shim_cgroup").limit_reached(self.order["cgroup"], status == 0)
        if status is None or os.WIFSIGNALED(status):
            self.finish(None, None if status is None else os.WTERMSIG(status), limit)
        else:
            self.finish(os.WEXITSTATUS(status), None, limit)

    def finish(self, exit_code: int | None, signal_number: int | None, error: str | None) -> None:
        self.exit = {
            "exit_code": exit_code,
            "signal": signal_number,
            "reason": self.reason,
            "error": error,
            "blame": self.blame,
            "ended_at": boottime(),
        }
        self.paused = False
        self.files.note_in_place("trainer.json", "exit.json", self.exit)
        self.tell("exit", **self.exit)

    def end(self, reason: str, grace_s: float) -> None:
        """Asks the tree to end; what is there after the grace is killed. A second call can only shorten it."""
        if self.exit is not None or self.killing:
            return
        if self.kill_at is None:
            self.reason = reason
            if grace_s > 0:
                self.signal_tree(signal.SIGTERM)
                self.signal_tree(signal.SIGCONT)
            self.paused = False
        kill_at = boottime() + grace_s
        self.kill_at = kill_at if self.kill_at is None else min(self.kill_at, kill_at)

    def signal_tree(self, number: int) -> list[int]:
        try:
            pids = [pid for pid in self.tree.descendants(os.getpid()) if pid != self.keeper_pid]
        except OSError:  # it cannot look, and reaches whatever has stayed in the trainer's own group
            pids = [-self.held_pid] if self.held_pid else []
        for pid in pids:
            self.tree.send_signal(pid, number)
        if number == signal.SIGKILL:
            self.leave_no_way_out()
        if not on_linux and self.trainer_pid:
            with contextlib.suppress(OSError):
                os.killpg(self.trainer_pid, number)
        return pids

    def leave_no_way_out(self) -> None:
        """Ends what a signal to each has missed, and wakes the second guardian, which goes once nothing is left."""
        if self.order.get("cgroup"):
            part("shim_cgroup").end_all(self.order["cgroup"])
        if self.keeper_pid:
            self.tree.send_signal(self.keeper_pid, signal.SIGCONT)

    def freeze_tree(self) -> None:
        """Stops the tree again and again until nothing new turns up: a process may fork between the look and the signal."""
        stopped_pids: set[int] = set()
        while (pids := set(self.signal_tree(signal.SIGSTOP))) - stopped_pids:
            stopped_pids |= pids

    def leave_nothing(self) -> None:
        """Ends the tree, and what was to become one, whatever made the guard end."""
        while self.starting and self.exit is None:
            self.signal_tree(signal.SIGKILL)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            time.sleep(0.01)

    # Time

    def nap_s(self) -> float | None:
        """Returns how long nothing needs to be looked at; None means until a message comes."""
        if not self.order:
            return None
        if self.exit is not None:
            return self.left_s(self.alone_until)
        if self.killing:
            self.kill_pause_s = min(self.kill_pause_s * 2, LONGEST_NAP_S)
            return self.kill_pause_s
        if self.paused:
            return LONGEST_NAP_S
        lease_until = None if self.order["on_partition"] == "continue" else self.lease_until
        deadlines = (self.alone_until, self.time_limit_at, lease_until, self.kill_at)
        naps = [nap for nap in map(self.left_s, deadlines) if nap is not None]
        return min(naps, default=None)

    @staticmethod
    def left_s(deadline: float | None) -> float | None:
        return None if deadline is None else min(LONGEST_NAP_S, max(0.0, deadline - boottime()))

    def mind_the_clock(self) -> None:
        if self.exit is not None:
            if self.passed(self.alone_until):
                self.report_alone()
            return
        if self.passed(self.alone_until):
            self.end("agent_lost", 0)
        if self.kill_at is None and self.passed(self.time_limit_at):
            self.time_is_up()
        if self.kill_at is None and not self.killing:
            self.mind_the_lease()
        if self.killing or self.passed(self.kill_at):
            self.killing = True
            self.signal_tree(signal.SIGKILL)
            self.reap()

    def time_is_up(self) -> None:
        """Lets the agent save a checkpoint first, if the order allows that; then, or without one, it ends the tree."""
        save_s = self.order.get("time_limit_save_s")
        if save_s and not self.out_of_time and not self.paused:
            self.out_of_time = True
            self.time_limit_at = boottime() + save_s + self.order["kill_grace_s"]
            self.tell("out_of_time")
            return
        self.outcome = "failed"
        self.end("time_limit", self.order["kill_grace_s"])

    @staticmethod
    def passed(deadline: float | None) -> bool:
        return deadline is not None and boottime() >= deadline

    def mind_the_lease(self) -> None:
        if not self.passed(self.lease_until):
            if self.paused:
                # Told first, as a pause is told last: whoever is paused by the agent's knowledge does not run.
                self.paused = False
                self.tell_status("resumed")
                self.signal_tree(signal.SIGCONT)
        elif self.order["on_partition"] == "stop":
            self.end("fenced", 0)
        elif self.order["on_partition"] == "pause":
            self.freeze_tree()
            if not self.paused:
                self.paused = True
                self.tell_status("paused")

    # Alone

    def report_alone(self) -> None:
        assert self.exit is not None
        self.done = True
        if self.listener is not None:
            self.listener.close()
        self.files.unlink("shim.sock")
        if self.order["report"] is None:
            return
        reporting = part("shim_report")
        body = reporting.report_of(self.order, self.exit, self.outcome, self.out_of_time)
        if reporting.report(self.order["report"], body) and body["status"] != "running":
            self.files.note(self.files.write_durably, "reported.json", {"at": boottime()})


def main() -> None:
    line = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)
    guard(line)


def guard(line: socket.socket) -> None:
    """Guards one attempt; `line` is the connection to the agent. Standard input and output lead nowhere already."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    line.setblocking(False)
    keep = line.fileno()
    os.closerange(3, keep)
    os.closerange(keep + 1, 65536)
    if os.getsid(0) != os.getpid():
        os.setsid()
    if on_linux:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    shim = Shim(line)
    try:
        shim.tell("ready")
        load_parts()  # while nobody waits
        shim.serve()
    finally:
        shim.leave_nothing()
    os._exit(
        0
    )  # nothing is left to be written; to take the interpreter apart would cost as much as all before


def load_parts() -> None:
    """Loads all parts now, so that this program stays of one version whatever happens to the installation."""
    for name in PARTS:
        part(name)


if __name__ == "__main__":
    main()
