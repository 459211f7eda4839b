"""Defines the messages between the nodes of one worker. All run the same version, so any release may change them."""

from typing import Literal

from msgspec import Struct

from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import EndReason
from simpletuner_fleet.core.workers.start_trouble import Blame
from simpletuner_fleet.protocol.messages import GpuReport, GpuSample, JobSubmit
from simpletuner_fleet.trainers.contract import NodeSpan

NodeRequest = Literal["checkpoint", "validation"]


class _OfTurn(Struct, frozen=True, kw_only=True):
    job_id: str
    epoch: int

    @property
    def turn(self) -> Turn:
        return Turn(self.job_id, self.epoch)


# A follower says:


class JoinNode(Struct, frozen=True, kw_only=True, tag="join"):
    """Joins a follower to the worker: it is the first message of its connection.

    A new connection of the same `home` takes the place of the one before.
    """

    version: str
    name: str
    home: str
    gpus: list[GpuReport]
    trainers: list[str]
    holds: list[Turn] = []
    """The ranks that it has, running or ended, and was not told to forget."""


class FetchContent(Struct, frozen=True, kw_only=True, tag="fetch"):
    """Asks for a file's bytes. It is the only message of a connection of its own, which is answered with them."""

    kind: Literal["object", "data"]
    job_id: str
    sha256: str
    offset: int


class Beat(Struct, frozen=True, kw_only=True, tag="beat"):
    sent: float
    """By the follower's clock, which alone is asked when the answer counts from."""
    samples: list[GpuSample] | None = None
    """None: as before."""


class RankHeld(_OfTurn, frozen=True, kw_only=True, tag="held"):
    """Says that a rank is prepared: all is done but the last step."""


class RankEnded(_OfTurn, frozen=True, kw_only=True, tag="ended"):
    reason: EndReason
    exit_code: int | None = None
    signal: int | None = None
    error: str | None = None
    blame: Blame = Blame.UNCLEAR


class Printed(_OfTurn, frozen=True, kw_only=True, tag="printed"):
    offset: int
    data: bytes
    gap: int = 0
    """So many bytes from `offset` on are left out before these."""


class NodeEnds(Struct, frozen=True, kw_only=True, tag="ends"):
    """Says that a follower ends because its machine is taken away, or its program was asked to stop."""

    source: str
    in_s: float


# The first node says:


class PrintedSoFar(_OfTurn, frozen=True, kw_only=True):
    offset: int


class Welcome(Struct, frozen=True, kw_only=True, tag="welcome"):
    node: int
    printed: list[PrintedSoFar] = []


class NotWelcome(Struct, frozen=True, kw_only=True, tag="not_welcome"):
    reason: str


class LeaseLeft(Struct, frozen=True, kw_only=True, tag="lease"):
    """Answers a `Beat` with how long the lease lasts."""

    sent: float
    left_s: float
    """From when the beat was sent; less than nothing where the lease has run out."""
    length_s: float
    """After so long without an answer a follower ends its ranks by itself."""
    every_s: float


class PrepareRank(Struct, frozen=True, kw_only=True, tag="prepare"):
    offer: JobSubmit
    """With the GPUs of this node alone, and without what lets one write for the attempt."""
    span: NodeSpan


class GoRank(_OfTurn, frozen=True, kw_only=True, tag="go"):
    pass


class StopRank(_OfTurn, frozen=True, kw_only=True, tag="stop"):
    grace_s: float


class AskRank(_OfTurn, frozen=True, kw_only=True, tag="ask"):
    """Asks a follower's trainer for a checkpoint or a validation, as that of the first node is asked.

    Both are made by all parts together: a part that was not asked would go on and leave the others waiting.
    """

    request: NodeRequest
    number: int
    """How many of its kind were asked for with this one: it is said again on each new connection, and acted on once."""


class ForgetRank(_OfTurn, frozen=True, kw_only=True, tag="forget"):
    """Tells a follower to forget a rank. What still runs of it is killed."""


class LeaveNow(Struct, frozen=True, kw_only=True, tag="leave"):
    """Tells a follower to leave, because the worker has left and its nodes go with it."""

    reason: str


class ContentPiece(Struct, frozen=True, kw_only=True, tag="content"):
    data: bytes


class ContentEnd(Struct, frozen=True, kw_only=True, tag="content_end"):
    trouble: str = ""
    passing: bool = True
    """Whether the same may be had later."""


FromFollower = JoinNode | FetchContent | Beat | RankHeld | RankEnded | Printed | NodeEnds
ToFollower = (
    Welcome
    | NotWelcome
    | LeaseLeft
    | PrepareRank
    | GoRank
    | StopRank
    | AskRank
    | ForgetRank
    | LeaveNow
    | ContentPiece
    | ContentEnd
)
