"""Defines machines that a provider makes for us, and the table of their state transitions.

A machine is `wanted` when a decision was made and its money is reserved, and nobody outside knows of it. It is `asked`
from just before the provider is called: from then on it may exist, whatever came of the call. It is `booting` once the
provider's answer or list has shown it, and `joined` once its worker has used its token. A machine that is not needed
any more is `draining` while a job still runs there, and `destroying` from the first call that ends it until the
provider's list has not shown it for long enough; only then is it `gone`. One that appears in the list after all that is
destroyed again. What is not in the table cannot happen.
"""

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.errors import IllegalTransition
from simpletuner_fleet.core.money.rates import Rates, with_rate


class MachineState(StrEnum):
    WANTED = "wanted"
    ASKED = "asked"
    BOOTING = "booting"
    JOINED = "joined"
    DRAINING = "draining"
    DESTROYING = "destroying"
    GONE = "gone"


class MachineInput(StrEnum):
    ASK = "ask"
    DROP = "drop"
    REFUSE = "refuse"
    APPEAR = "appear"
    JOIN = "join"
    DRAIN = "drain"
    DESTROY = "destroy"
    VANISH = "vanish"


_S, _I = MachineState, MachineInput
MACHINE_TRANSITIONS: dict[tuple[MachineState, MachineInput], MachineState] = {
    (_S.WANTED, _I.ASK): _S.ASKED,
    (_S.WANTED, _I.DROP): _S.GONE,
    (_S.ASKED, _I.REFUSE): _S.GONE,
    (_S.ASKED, _I.APPEAR): _S.BOOTING,
    (_S.ASKED, _I.JOIN): _S.JOINED,
    (_S.ASKED, _I.DESTROY): _S.DESTROYING,
    (_S.ASKED, _I.VANISH): _S.GONE,
    (_S.BOOTING, _I.JOIN): _S.JOINED,
    (_S.BOOTING, _I.DESTROY): _S.DESTROYING,
    (_S.BOOTING, _I.VANISH): _S.GONE,
    (_S.JOINED, _I.DRAIN): _S.DRAINING,
    (_S.JOINED, _I.DESTROY): _S.DESTROYING,
    (_S.JOINED, _I.VANISH): _S.GONE,
    (_S.DRAINING, _I.DESTROY): _S.DESTROYING,
    (_S.DRAINING, _I.VANISH): _S.GONE,
    (_S.DESTROYING, _I.VANISH): _S.GONE,
    (_S.GONE, _I.APPEAR): _S.DESTROYING,
}
ON_ITS_WAY = frozenset({_S.WANTED, _S.ASKED, _S.BOOTING})
IN_USE = frozenset({_S.JOINED, _S.DRAINING})
MAY_JOIN = frozenset({_S.ASKED, _S.BOOTING})


class MachineEndReason(StrEnum):
    """Gives the reason for which a machine is no longer wanted, or is gone."""

    IDLE = "idle"
    NOT_NEEDED = "not_needed"
    """Whatever it was wanted for went elsewhere before the provider was asked."""
    REFUSED = "refused"
    """The provider said that it made none."""
    NEVER_MADE = "never_made"
    """No answer came, and it never appeared."""
    BOOT_DEADLINE = "boot_deadline"
    LOST = "lost"
    """Its worker has been silent for longer than a machine may take to come."""
    LEFT = "left"
    """Its worker has done its one job, or its process has ended."""
    WORKER_DELETED = "worker_deleted"
    VANISHED = "vanished"
    ASKED_FOR = "asked_for"
    """A person wanted it gone."""
    POOL_DELETED = "pool_deleted"
    BUDGET = "budget"
    PRICE = "price"
    """It costs more than its pool allows."""
    STRAY = "stray"
    """It carries our name, and nobody here knows of it."""


FAILURES = frozenset({MachineEndReason.REFUSED, MachineEndReason.NEVER_MADE, MachineEndReason.BOOT_DEADLINE})
"""After these the pool waits before it asks for the next; so it does where one vanished, or ended, before it joined."""
MAX_DETAIL_CHARS = 2000
MAX_LOG_CHARS = 16_000


class Machine(Struct, frozen=True, kw_only=True):
    id: str
    pool: str
    name: str
    """What it is called at its provider: the fleet's id is in it, and no other machine was ever called so."""
    state: MachineState
    created_at: float
    gpu_name: str = ""
    gpus: int = 0
    nodes: int = 1
    vram_gb: float = 0.0
    accelerator: str = "cuda"
    spot: bool = False
    region: str = ""
    offer_id: str = ""
    offered_micros: int = 0
    """What an hour of it was to cost, in millionths of the currency's unit."""
    rates: Rates = ()
    """Since when it costs how much an hour; the last one counts now. Empty where it has cost nothing."""
    for_job: str = ""
    asked_at: float | None = None
    provider_id: str = ""
    """Empty as long as neither an answer nor a list has told it."""
    join_hash: str = ""
    join_until: float = 0.0
    home: str = ""
    """The one folder whose agent may use its token, once one has."""
    joined_at: float | None = None
    worker_id: str = ""
    missing_since: float | None = None
    """Since when the provider's list does not show it, though it should."""
    ended_at: float | None = None
    """Since when the provider says that it does not run any more, though it is there."""
    stop_by: float | None = None
    """When it is destroyed, whatever still runs there."""
    destroying_at: float | None = None
    gone_at: float | None = None
    why: str = ""
    detail: str = ""
    """What the provider said to it."""
    boot_log: str = ""

    @property
    def hourly_micros(self) -> int:
        return self.rates[-1][1] if self.rates else self.offered_micros

    @property
    def is_live(self) -> bool:
        return self.state is not MachineState.GONE


class UnreadableMachine(Struct, frozen=True, kw_only=True):
    """Tells the little that is known of a machine whose row cannot be read: it may run, work and cost."""

    id: str
    pool: str = ""
    """Empty: not known either."""
    gone_at: float | None = None

    @property
    def is_live(self) -> bool:
        return self.gone_at is None

    def may_be_of(self, pool: str) -> bool:
        return self.pool in ("", pool)


def moved(
    machine: Machine, machine_input: MachineInput, now: float, why: str = "", detail: str = ""
) -> Machine:
    """Returns the machine after this input; the first reason stays, since what follows from it is no news."""
    try:
        state = MACHINE_TRANSITIONS[machine.state, machine_input]
    except KeyError:
        raise IllegalTransition(f"A machine that is {machine.state} cannot take '{machine_input}'.") from None
    was_over = machine.state is MachineState.GONE
    after = replace(
        machine,
        state=state,
        why=why if was_over else machine.why or why,
        detail=(detail or machine.detail)[:MAX_DETAIL_CHARS],
    )
    match state:
        case MachineState.ASKED:
            return replace(after, asked_at=now, rates=((now, machine.offered_micros),))
        case MachineState.JOINED:
            return replace(after, joined_at=now)
        case MachineState.DESTROYING:
            # One that was thought gone and is not has cost all the time.
            rates = machine.rates or ((machine.asked_at or machine.created_at, machine.offered_micros),)
            return replace(
                after, destroying_at=now, join_hash="", missing_since=None, gone_at=None, rates=rates
            )
        case MachineState.GONE:
            unmade = machine_input in (MachineInput.DROP, MachineInput.REFUSE)
            never = machine_input is MachineInput.VANISH and not _was_ever_seen(machine)
            rates = () if unmade or never else machine.rates
            return replace(after, gone_at=now, join_hash="", missing_since=None, rates=rates)
    return after


def _was_ever_seen(machine: Machine) -> bool:
    return bool(machine.provider_id) or machine.joined_at is not None


def at_price(machine: Machine, hourly_micros: int, now: float) -> Machine:
    """Returns the machine with what it costs from now on. A price that keeps changing is kept in bounds."""
    if not machine.rates:
        return machine
    rates = with_rate(None, machine.rates, hourly_micros, now)
    return machine if rates is machine.rates else replace(machine, rates=rates)


def worker_price(machine: Machine) -> int | None:
    """Returns what an hour of one of its GPUs costs, as its worker reports it; None if there is nothing to report."""
    return machine.hourly_micros // machine.gpus if machine.gpus and machine.hourly_micros else None
