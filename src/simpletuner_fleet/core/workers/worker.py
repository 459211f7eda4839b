"""Describes workers by three independent facts, and the one published status that follows from them."""

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.workers.audience import Audience
from simpletuner_fleet.core.workers.interruption import Interruption
from simpletuner_fleet.core.workers.start_trouble import StartTrouble


class AdminState(StrEnum):
    ACTIVE = "active"
    DRAINING = "draining"


class Connection(StrEnum):
    CONNECTING = "connecting"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    """Its stream is gone for longer than a moment; it is expected back, and lost only after the timeout."""
    OFFLINE = "offline"


class WorkerStatus(StrEnum):
    CONNECTING = "connecting"
    IDLE = "idle"
    BUSY = "busy"
    DRAINING = "draining"
    OFFLINE = "offline"


class WorkerType(StrEnum):
    EPHEMERAL = "ephemeral"
    PERSISTENT = "persistent"


def published_status(
    admin: AdminState, connection: Connection, holds_attempt: bool, interrupted: bool = False
) -> WorkerStatus:
    if connection is Connection.OFFLINE:
        return WorkerStatus.OFFLINE
    if connection is not Connection.CONNECTED:
        return WorkerStatus.CONNECTING
    if admin is AdminState.DRAINING or interrupted:
        return WorkerStatus.DRAINING
    return WorkerStatus.BUSY if holds_attempt else WorkerStatus.IDLE


class Gpu(Struct, frozen=True, kw_only=True):
    index: int
    uuid: str
    name: str = ""
    vram_gb: float = 0.0
    accelerator_type: str = "cuda"
    unusable: str = ""
    """Why it is handed to nobody for now; empty when it is fine."""
    node: int = 0
    """On which of its worker's nodes it is; its index counts there. The agent runs on node 0."""


LOCAL_GPU_NAMES = ("GPU-declared-", "GPU-reported-", "MPS-")
"""How GPUs are called whose makers gave them no name of their own: by their place in one worker."""


def gpu_identity(worker_id: str, uuid: str) -> str:
    """Returns the identity of a GPU: its UUID on whichever worker, or its worker and place where it has none."""
    return f"{worker_id}/{uuid}" if uuid.startswith(LOCAL_GPU_NAMES) else uuid


class DrainPlan(Struct, frozen=True, kw_only=True):
    """Says what becomes of attempts that still run when a drain has waited long enough."""

    timeout_s: float
    deadline: float
    checkpoint_first: bool = True


LEGACY_TRAINERS = ("simpletuner",)
TLS_KINDS = ("pinned", "verified", "unverified", "none")
FORMER_TOKENS_KEPT = 8
RETIRED_KEPT = 16


class Worker(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    token_hash: str
    token_created_at: float
    created_at: float
    chosen_type: WorkerType | None = None
    reported_type: WorkerType | None = None
    admin: AdminState = AdminState.ACTIVE
    connection: Connection = Connection.CONNECTING
    labels: dict[str, str] = {}
    reported_labels: dict[str, str] = {}
    gpus: tuple[Gpu, ...] = ()
    trainers: tuple[str, ...] = ()
    saves_on_request: tuple[str, ...] | None = None
    """Those of them that save a checkpoint when asked and train on; None: its agent does not know how to ask."""
    validates_on_request: tuple[str, ...] | None = None
    """Those of them that validate when asked and train on; None: its agent does not know how to ask."""
    max_jobs: int = 1
    legacy: bool = False
    local: bool = False
    agent_version: str = ""
    home: str = ""
    """Random name of the state folder the agent works in: two machines with one token differ here."""
    incarnation: str = ""
    """Random name of the agent's process; the newest to register wins."""
    retired: tuple[str, ...] = ()
    """Incarnations that were superseded or have said goodbye: what they still send is refused, so that two agents never
    take turns, and no message that was overtaken brings back one that has left."""
    message_seq: int = 0
    """The newest register or accept of this incarnation that was read."""
    registered_at: float | None = None
    last_heartbeat: float | None = None
    offline_since: float | None = None
    """Since when it is offline, or reconnecting."""
    drain_note: str = ""
    drain_plan: DrainPlan | None = None
    """None while it does not drain, and while it drains for as long as its jobs take."""
    start_trouble: StartTrouble | None = None
    """None while it starts what it is given."""
    datasets: tuple[str, ...] = ()
    """Ids of those in its cache, the last used first."""
    data_bytes: int = 0
    data_limit_bytes: int = 0
    """How much its cache may hold; 0 where it has none."""
    address: str = ""
    """Where it last registered from."""
    tls: str = ""
    """What it says of its own connection: one of TLS_KINDS, or nothing."""
    former_tokens: tuple[str, ...] = ()
    """Hashes of those that were rotated, the newest last: whoever still uses one is told apart from a stranger."""
    price_micros: int | None = None
    """What an hour of one of its GPUs costs, in millionths of the currency's unit; None: nobody has said so."""
    reported_price_micros: int | None = None
    """The same as the worker says it; what was said of it by others goes before."""
    interruption: Interruption | None = None
    """Its machine is about to be taken away: it takes no job. Forgotten when another process registers."""
    spot: bool = False
    """Its machine was hired as one that may be taken away at any time."""
    audience: Audience | None = None
    """Whose jobs it takes, as the pool says that brought it; None: everybody's."""
    version: int = 0

    @property
    def worker_type(self) -> WorkerType:
        return self.chosen_type or self.reported_type or WorkerType.PERSISTENT

    @property
    def effective_labels(self) -> dict[str, str]:
        """Returns all labels; reported ones fill only keys that the admin left out, and keys ignore case."""
        chosen = {key.casefold() for key in self.labels}
        filling = {key: value for key, value in self.reported_labels.items() if key.casefold() not in chosen}
        return {**filling, **self.labels}

    @property
    def gpu_count(self) -> int:
        return len(self.gpus)

    @property
    def nodes(self) -> int:
        """Returns how many nodes the worker has.

        Its GPUs are in the order of their nodes, and each node has some.
        """
        return self.gpus[-1].node + 1 if self.gpus else 1

    @property
    def gpu_name(self) -> str | None:
        return self.gpus[0].name if self.gpus else None

    @property
    def gpu_vram_gb(self) -> float | None:
        return min(gpu.vram_gb for gpu in self.gpus) if self.gpus else None

    @property
    def accelerator_type(self) -> str | None:
        return self.gpus[0].accelerator_type if self.gpus else None

    def stream_gone(self, since: float) -> "Worker":
        """Returns the worker as reconnecting, after its stream ended a moment ago and has not come back."""
        if self.connection is not Connection.CONNECTED:
            return self
        return replace(self, connection=Connection.RECONNECTING, offline_since=since)

    def without(self, incarnation: str) -> "Worker":
        """Returns the worker with this process of its agent retired; older agents do not name theirs."""
        if not incarnation or incarnation in self.retired:
            return self
        return replace(self, retired=(*self.retired, incarnation)[-RETIRED_KEPT:])

    def drain_is_due(self, now: float) -> bool:
        plan = self.drain_plan
        return self.admin is AdminState.DRAINING and plan is not None and plan.deadline <= now

    @property
    def takes_a_pause(self) -> bool:
        """Tells whether the worker is offered nothing for now, because it could not start what it was given."""
        return self.start_trouble is not None and self.start_trouble.closed_until is not None

    def pause_is_over(self, now: float) -> bool:
        until = self.start_trouble.closed_until if self.start_trouble else None
        return until is not None and until <= now

    def status(self, holds_attempt: bool) -> WorkerStatus:
        return published_status(self.admin, self.connection, holds_attempt, self.interruption is not None)

    @property
    def may_be_taken_away(self) -> bool:
        """Tells whether its machine may vanish at any time, which is no fault of a job."""
        return self.spot or self.interruption is not None
