"""Defines pools: where machines come from, how many at most, and what they may cost."""

import re
from enum import StrEnum
from typing import Any, Literal

from msgspec import Struct

from simpletuner_fleet.core.bounds import Amount, Count, FreeText, Name, Seconds
from simpletuner_fleet.core.configs.bundle import check_name
from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.jobs.job import Job
from simpletuner_fleet.core.jobs.submitting.submission import check_labels
from simpletuner_fleet.core.money.amounts import MAX_MICROS
from simpletuner_fleet.core.workers.audience import Audience

MAX_MACHINES = 10_000
MAX_NAMED = 1_000
"""So many teams, and so many people, a pool may name."""
MAX_TIME_S = 7 * 86_400.0
MAX_SETTINGS, MAX_SETTING_CHARS = 64, 16_384
POOL_LABEL = "pool"
NAME_BEGINS = "stf"
PROVIDER_NAMES = {"runpod": "RunPod", "vast": "Vast.ai", "slurm": "Slurm"}
"""As they write themselves; others are called by their kind."""
PLACES = ("api", "api_url", "config", "hosts", "namespace")
"""Settings that say where a provider's machines are; a plug-in's bear these names, too."""
_BETWEEN_WORDS = re.compile(r"[\s,;]+")
_UNFIT_FOR_NAMES = re.compile(r"[^a-z0-9]+")

Market = Literal["on_demand", "spot", "spot_first"]
OverBudget = Literal["stop", "finish"]


class PoolCeiling(StrEnum):
    """Names the ceiling that keeps a machine from being brought, by the name of its option."""

    COUNT = "max_machines"
    PRICE = "max_price"
    HOURLY = "max_hourly"
    DAILY = "max_daily"
    MONTHLY = "max_monthly"


class PoolRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds the settings of a pool, as a person gives them."""

    provider: Name
    settings: dict[FreeText, FreeText] = {}
    """For the provider alone."""
    secret: Name | None = None
    """The name of the stored secret that holds the provider's key."""
    min_machines: Count = 0
    max_machines: Count = 1
    max_price_micros: Count | None = None
    """For an hour of one machine, in millionths of the currency's unit; without it any price goes."""
    max_hourly_micros: Count | None = None
    max_daily_micros: Count | None = None
    max_monthly_micros: Count | None = None
    market: Market = "on_demand"
    spot_tries: Count = 2
    """With `spot_first`: a job whose machines were taken away so often is brought one on demand."""
    over_budget: OverBudget = "stop"
    """What becomes of running jobs at the ceiling of a day or month: saved and stopped in time, or let finish."""
    idle_s: Seconds = 600.0
    """So long a machine stays without a job; 0: each machine takes one job and goes."""
    boot_s: Seconds = 900.0
    """So long a machine may take to join, and a lost one to come back."""
    kinds: tuple[FreeText, ...] = ()
    """Names of GPUs, with * and ?; none: any."""
    regions: tuple[FreeText, ...] = ()
    labels: dict[FreeText, FreeText] = {}
    teams: tuple[Name, ...] = ()
    """Whose jobs may use it, by id or name; it is kept by id. Neither teams nor people: everybody's."""
    people: tuple[Name, ...] = ()
    """Whose jobs may use it besides, whichever team they are for."""
    trainers: tuple[Name, ...] = ("simpletuner",)
    """What its machines can run."""
    data_gb: Amount = 100.0
    """How much its machines can hold of datasets."""
    orchestrator_url: FreeText = ""
    """Where its machines reach the orchestrator; empty: the server's public URL."""
    enabled: bool = True
    """Off: no new machine is brought; those that are there go on."""


class NoMachine(Struct, frozen=True, kw_only=True):
    """Gives the reason why no machine is brought for jobs that wait in one queue."""

    code: str
    """The code of a reason in `placement.reasons`."""
    params: dict[str, Any] = {}


class MachinePool(Struct, frozen=True, kw_only=True):
    name: str
    request: PoolRequest
    created_at: float
    created_by: str
    deleted_at: float | None = None
    """Deleted: it stays until its last machine is gone."""
    no_machine: dict[str, NoMachine] = {}
    """By line, for the jobs that would need one."""
    trouble: str = ""
    """What its provider said to the last look, where that failed."""
    unseen_since: float | None = None
    """Since when its provider's list cannot be had: what it has goes on costing, and cannot be ended."""

    @property
    def brings_machines(self) -> bool:
        return self.request.enabled and self.deleted_at is None

    @property
    def audience(self) -> Audience | None:
        """Returns who may use its machines; None where everybody may."""
        teams, people = self.request.teams, self.request.people
        return Audience(teams=teams, people=people) if teams or people else None

    def is_for(self, job: Job) -> bool:
        return self.audience is None or self.audience.admits(job.owner, job.team)


def check_pool(name: str, request: PoolRequest) -> None:
    check_name(name, "$.name", "pool's name")
    check_labels(request.labels, "$.labels")
    _within(request.max_machines, 0, MAX_MACHINES, "max_machines")
    _within(request.min_machines, 0, request.max_machines, "min_machines")
    for field in ("max_price_micros", "max_hourly_micros", "max_daily_micros", "max_monthly_micros"):
        value = getattr(request, field)
        if value is not None:
            _within(value, 0, MAX_MICROS, field)
    _within(request.spot_tries, 0, 100, "spot_tries")
    _within(request.idle_s, 0, MAX_TIME_S, "idle_s")
    _within(request.boot_s, 10, MAX_TIME_S, "boot_s")
    _within(request.data_gb, 0, 1e6, "data_gb")
    if not request.trainers:
        raise Invalid("Name at least one trainer that the pool's machines can run.", path="$.trainers")
    for field in ("teams", "people"):
        if len(getattr(request, field)) > MAX_NAMED:
            raise Invalid(
                f"A pool is reserved for at most {MAX_NAMED} teams and as many people.", path=f"$.{field}"
            )
    if len(request.settings) > MAX_SETTINGS or any(
        len(text) > MAX_SETTING_CHARS for pair in request.settings.items() for text in pair
    ):
        raise Invalid("The provider's settings are too large.", path="$.settings")


def check_same_place(before: PoolRequest, after: PoolRequest) -> None:
    """Raises Invalid where existing machines would not be listed any more, and so be forgotten and paid for."""
    if before.provider != after.provider:
        raise Invalid(
            "A pool that has machines cannot change its provider.",
            path="$.provider",
            next_step="Delete it, wait until its machines are gone, and make it anew.",
        )
    if before.secret != after.secret:
        raise Invalid(
            "A pool that has machines cannot name another secret.",
            path="$.secret",
            next_step="Store the new key under the same name, or wait until its machines are gone.",
        )
    for name in PLACES:
        old, new = (_words(request.settings.get(name, "")) for request in (before, after))
        if not (old <= new if name == "hosts" else old == new):
            raise Invalid(
                f"A pool that has machines cannot change '{name}': they would not be found any more.",
                path="$.settings",
                next_step="Delete it, wait until its machines are gone, and make it anew.",
            )


def _words(text: str) -> set[str]:
    return set(_BETWEEN_WORDS.split(text.strip()))


def _within(value: float, least: float, most: float, field: str) -> None:
    if not least <= value <= most:
        raise Invalid(f"{field} must be between {least:g} and {most:g}.", path=f"$.{field}")


def name_for(fleet_id: str, machine_id: str) -> str:
    """Returns a name that marks a machine as ours, even if the provider's answer is lost."""
    return f"{our_beginning(fleet_id)}{_plain(machine_id)}"


def our_beginning(fleet_id: str) -> str:
    return f"{NAME_BEGINS}-{_plain(fleet_id)}-"


def _plain(text: str) -> str:
    """Escapes capitals, so that names stay distinct at providers that ignore case."""
    escaped = "".join(f"{char.lower()}0" if char.isupper() else char for char in text.replace("0", "00"))
    return _UNFIT_FOR_NAMES.sub("", escaped)
