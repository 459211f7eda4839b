"""Connects the agent to a shim, and defines the messages between them."""

import asyncio
import contextlib
import os
import signal
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Protocol, Self, TypeVar

import msgspec
from msgspec import Struct, field

from simpletuner_fleet.agent.guard.shim_tree import NOT_SEEN
from simpletuner_fleet.agent.lease import Deadlines
from simpletuner_fleet.core.jobs.job import EndReason, Outcome
from simpletuner_fleet.core.workers.start_trouble import Blame

MAX_LINE_BYTES = 16 * 1024 * 1024
"""As the shim's own: a greeting holds every value that is to be hidden."""
MAX_SOCKET_PATH_BYTES = 96
ASK_AGAIN_S = 0.1


CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boottime() -> float:
    """Reads the shim's clock: it goes on while the machine is suspended, and no administrator sets it."""
    return time.clock_gettime(CLOCK)


def boot_id() -> str:
    """Returns what each start of the machine has of its own, and nothing where that is not told."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


class ReportTo(Struct, kw_only=True, frozen=True):
    """Names where the shim reports by itself when the agent is gone. The token is good for this attempt only."""

    url: str
    job_id: str
    epoch: int
    upload_token: str
    attempt: int | None = None
    cafile: str | None = None
    """Trusted instead of the system's authorities."""
    pinned_certfile: str | None = None
    """Trusted alone and whatever the host's name: the certificate whose fingerprint the user gave, as PEM."""
    no_verify: bool = False


class Wall(Struct, kw_only=True, frozen=True):
    """Describes the wall that isolates a trainer from the machine, as a shim is to build it; see `shim_wall`."""

    kind: Literal["user", "namespace", "landlock"]
    places: list[tuple[str, str, Literal["ro", "rw", "hide", "room"]]]
    """From where, to where, and how; what lies deeper comes later."""
    home: str = ""
    uid: int | None = None
    gid: int | None = None
    groups: list[int] = []


class ReadyWall(Struct, kw_only=True, frozen=True):
    """Describes a wall that is built before its attempt is known. Later, only places are added to it."""

    folder: Path
    """Becomes the attempt's folder, when there is one: what is in there is shown behind the wall already."""
    wall: Wall
    seen: tuple[object, ...]
    """How the machine was when it was built."""
    cgroup: str = ""
    """The control group that the trainer to be has entered already; '' is none."""


class ReadyWalls(Protocol):
    """Makes walls before their attempt is known. Both methods block: they are called in a thread."""

    def ready(self) -> ReadyWall | None:
        """Returns a wall that is built already; None where there is none to be had."""

    def discard(self, ready: ReadyWall) -> None: ...


class Build(Struct, frozen=True, tag="build", tag_field="do"):
    """Tells a shim to build its wall before there is an order, and to enter the control group.

    That alone takes ten milliseconds.
    """

    wall: Wall
    cgroup: str = ""


class Order(Struct, kw_only=True, frozen=True, tag="hold", tag_field="do"):
    """Tells a shim to prepare one attempt up to its last step; only `Go` makes it run.

    `env` is the trainer's whole environment. Where the wall was built before, its places are those to be added.
    """

    attempt_id: str
    attempt_dir: str
    argv: list[str]
    env: dict[str, str]
    cwd: str
    output: str
    on_partition: Literal["pause", "continue", "stop"] = "pause"
    kill_grace_s: float = 30.0
    adopt_grace_s: float = 2.0
    time_limit_s: float | None = None
    time_limit_save_s: float | None = None
    """At the limit the agent is told and has so long to save and stop; None: the tree is ended at once."""
    report: ReportTo | None = None
    exit_tells: bool = True
    """Whether exit code 0 alone says that the training is complete."""
    hidden: list[str] = []
    """Values that must not be seen in what is told of the output."""
    wall: Wall | None = None
    cgroup: str = ""
    """The control group that the trainer runs in; '' is none of its own."""
    key: str = ""
    """What a new agent must know to be met; '' lets everybody in who reaches the socket."""

    def deadlines(self, lease_s: float | None, leased_at: float | None, now: float) -> Deadlines:
        """Returns those of a trainer that was started `now`."""
        return Deadlines(
            on_partition=self.on_partition,
            lease_until=None if lease_s is None else (now if leased_at is None else leased_at) + lease_s,
            time_limit_at=None if self.time_limit_s is None else now + self.time_limit_s,
            time_limit_save_s=self.time_limit_save_s,
            kill_grace_s=self.kill_grace_s,
        )


class Go(Struct, kw_only=True, frozen=True, tag="go", tag_field="do"):
    """Tells a shim to run its trainer, for as long as its lease: the acceptance was answered."""

    lease_s: float | None
    leased_at: float | None
    """By `boottime`; None is when this arrives."""


class Greet(Struct, frozen=True, tag="greet", tag_field="do"):
    """Introduces a new agent to a shim that it finds, with the key that admits it. It is the agent's first message."""

    key: str


class Renew(Struct, frozen=True, tag="renew", tag_field="do"):
    until: float
    """By `boottime`, which both ends share: a renewal that was held up on its way is worth no more for it."""


class Stop(Struct, frozen=True, tag="stop", tag_field="do"):
    grace_s: float
    outcome: Outcome = Outcome.LOST


class AskStatus(Struct, frozen=True, tag="status", tag_field="do"):
    """Asks a shim for a sign of life."""


class Release(Struct, frozen=True, tag="release", tag_field="do"):
    pass


class ShimReady(Struct, tag="ready", tag_field="event"):
    pass


class Built(Struct, tag="built", tag_field="event"):
    pass


class TrainerHeld(Struct, tag="held", tag_field="event"):
    """Says that everything but the last step is under way. What goes wrong is reported after `Go`."""


class Started(Struct, kw_only=True, tag="started", tag_field="event"):
    pid: int


class ExitRecord(Struct, kw_only=True):
    """Records how a process tree ended: it is the content of `exit.json`.

    It is sent when that happens, and in every greeting after.
    """

    reason: EndReason
    exit_code: int | None = None
    signal: int | None = None
    error: str | None = None
    blame: Blame = Blame.UNCLEAR
    """Of a start that failed: whose fault that may be."""


class Exited(ExitRecord, kw_only=True, tag="exit", tag_field="event"):
    pass


class Hello(Struct, kw_only=True, tag="hello", tag_field="event"):
    pid: int | None = None
    paused: bool = False
    exit: ExitRecord | None = None
    out_of_time: bool = False
    hidden: list[str] = []
    """As ordered: an agent that was restarted has it from here alone, since it is on no disk."""
    deadlines: Deadlines = field(default_factory=Deadlines)


class Status(Struct, kw_only=True, tag="status", tag_field="event"):
    """Answers `AskStatus`."""


class Paused(Struct, kw_only=True, tag="paused", tag_field="event"):
    pid: int | None = None


class OutOfTime(Struct, kw_only=True, tag="out_of_time", tag_field="event"):
    """Says that the time limit is reached.

    The shim waits a while for the agent to save a checkpoint and stop the tree.
    """


class Resumed(Struct, kw_only=True, tag="resumed", tag_field="event"):
    pid: int | None = None


T = TypeVar("T")
ToShim = Build | Order | Go | Greet | Renew | Stop | AskStatus | Release
FromShim = ShimReady | Built | TrainerHeld | Started | Exited | Hello | Status | Paused | Resumed | OutOfTime

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[FromShim] = msgspec.json.Decoder(FromShim)


class ShimGone(Exception):
    """The shim closed the line: it has done its work, or it was killed."""


class ShimLink:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, line: socket.socket) -> Self:
        return cls(*await asyncio.open_unix_connection(sock=line, limit=MAX_LINE_BYTES))

    @classmethod
    async def to(cls, attempt_dir: Path) -> Self:
        """Raises ShimGone where no shim listens any more. It waits where there is no descriptor for the moment."""
        while True:
            try:
                with _short_path(attempt_dir) as folder:
                    path = f"{folder}/shim.sock"
                    return cls(*await asyncio.open_unix_connection(path, limit=MAX_LINE_BYTES))
            except OSError as error:
                if error.errno not in NOT_SEEN:
                    raise ShimGone(str(error)) from error
            await asyncio.sleep(ASK_AGAIN_S)

    def send(self, message: ToShim) -> None:
        """Does not wait and does not fail: a shim that is gone is noticed by `receive`."""
        if not self._writer.is_closing():
            self._writer.write(_encoder.encode(message) + b"\n")

    async def receive(self) -> FromShim:
        try:
            line = await self._reader.readuntil(b"\n")
            return _decoder.decode(line)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError) as error:
            raise ShimGone from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ShimGone(f"it said what no shim says: {error}") from error

    async def expect(self, kind: type[T]) -> T:
        """Returns the first message. If another comes, or none in time, the connection is closed."""
        try:
            message = await self.receive()
            if not isinstance(message, kind):
                raise ShimGone(f"it said {message!r} first")
        except BaseException:
            self.close()
            raise
        return message

    def kill_shim(self, attempt_dir: Path) -> None:
        """Kills the process that listens at the other end, if it is the shim: a shim works in its attempt's folder."""
        line = self._writer.get_extra_info("socket")
        if line is None or not hasattr(socket, "SO_PEERCRED"):
            return
        pid, _uid, _gid = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        with contextlib.suppress(OSError):
            if os.path.samefile(f"/proc/{pid}/cwd", attempt_dir):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        self._writer.close()


@contextlib.contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """Returns a path to the folder that fits into a Unix socket's 107 bytes; a longer one goes through a descriptor."""
    if len(os.fsencode(folder)) <= MAX_SOCKET_PATH_BYTES or not os.path.isdir("/proc/self/fd"):
        yield str(folder)
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
