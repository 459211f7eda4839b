"""Limits how much of the fleet a person, a team or everybody may use, and what happens at the ceiling."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from math import floor, isfinite
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.bounds import MAX_AMOUNT
from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.jobs.job import Job
from simpletuner_fleet.core.marks import N_
from simpletuner_fleet.core.money.amounts import DEFAULT_CURRENCY, amount_text
from simpletuner_fleet.core.money.forecast import Forecast, forecast_of
from simpletuner_fleet.core.placement.usage import EVERYBODY, HOUR_S, UseLedger, person, team


class QuotaKind(StrEnum):
    RUNNING_JOBS = "running_jobs"
    GPUS = "gpus"
    GPU_HOURS_DAY = "gpu_hours_day"
    GPU_HOURS_MONTH = "gpu_hours_month"
    MONEY_DAY = "money_day"
    """A budget: in millionths of the currency's unit."""
    MONEY_MONTH = "money_month"
    JOBS_PER_HOUR = "jobs_per_hour"
    STORED_BYTES = "stored_bytes"


class QuotaScope(StrEnum):
    PERSON = "person"
    TEAM = "team"
    ROLE = "role"
    """Of each person who has the role."""
    EACH = "each"
    """Of each person there is."""
    ALL = "all"
    """Of all of them together."""


class QuotaAction(StrEnum):
    WARN = "warn"
    """Says so to who submits, and lets the job go on."""
    WAIT = "wait"
    """The job stands in line until there is room."""
    REFUSE = "refuse"
    APPROVE = "approve"
    """The job waits for somebody's approval, and is exempt once it has it."""


KIND_NAMES = {
    QuotaKind.RUNNING_JOBS: N_("running jobs"),
    QuotaKind.GPUS: N_("GPUs at once"),
    QuotaKind.GPU_HOURS_DAY: N_("GPU-hours a day"),
    QuotaKind.GPU_HOURS_MONTH: N_("GPU-hours a month"),
    QuotaKind.MONEY_DAY: N_("money a day"),
    QuotaKind.MONEY_MONTH: N_("money a month"),
    QuotaKind.JOBS_PER_HOUR: N_("jobs an hour"),
    QuotaKind.STORED_BYTES: N_("stored bytes"),
}
ACTIONS: dict[QuotaKind, frozenset[QuotaAction]] = {
    # What is stored frees itself by no job's end and no clock: who waited for it would wait for ever.
    QuotaKind.STORED_BYTES: frozenset(QuotaAction) - {QuotaAction.WAIT},
}
"""What can be done at the ceiling of a kind; everything where a kind is not named."""
OF_MONEY = (QuotaKind.MONEY_DAY, QuotaKind.MONEY_MONTH)
OF_ONE = (QuotaScope.PERSON, QuotaScope.TEAM, QuotaScope.ROLE)
"""Scopes that name whose quota it is."""


class Quota(Struct, frozen=True, kw_only=True):
    id: str
    kind: QuotaKind
    scope: QuotaScope
    subject: str = ""
    """The id of the person or team, or the role; empty for each person and for all."""
    ceiling: int | float
    """A whole number where it is money."""
    action: QuotaAction = QuotaAction.WAIT
    warn_at: float = 0.8
    """From this share of the ceiling on, whoever submits is told."""
    created_at: float = 0.0

    @property
    def is_of_one_account(self) -> bool:
        """Tells whether the quota is counted once, and not for each person or each one with a role."""
        return self.scope not in (QuotaScope.ROLE, QuotaScope.EACH)


class QuotaStanding(Struct, frozen=True, kw_only=True):
    """Describes how much of one quota an account has used, and when some of it becomes available again."""

    quota: Quota
    account: str
    used: int | float
    frees_at: float | None = None
    """When some of it comes back by itself; None: when a job ends, or something stored is deleted."""
    at_least: bool = False
    """Of money: some of what was used has no known price, and is not in it."""
    forecast: Forecast | None = None
    """Of money alone."""

    @property
    def left(self) -> float:
        return max(0, self.quota.ceiling - self.used)


def checked_quota(quota: Quota) -> Quota:
    if not isfinite(quota.ceiling) or not 0 <= quota.ceiling <= MAX_AMOUNT:
        raise Invalid("A ceiling is 0 or more.", path="$.ceiling")
    if quota.kind in OF_MONEY and quota.ceiling != int(quota.ceiling):
        raise Invalid("A ceiling of money is a whole number of millionths.", path="$.ceiling")
    if not 0 < quota.warn_at <= 1:
        raise Invalid("warn_at is a share of the ceiling: more than 0 and at most 1.", path="$.warn_at")
    if (quota.scope in OF_ONE) != bool(quota.subject):
        raise Invalid(
            "A quota of a person, a team or a role names which; one of each or of all names none.",
            path="$.subject",
        )
    possible = ACTIONS.get(quota.kind, frozenset(QuotaAction))
    if quota.action not in possible:
        raise Invalid(
            f"At the ceiling of {quota.kind} there can be {', '.join(sorted(possible))}.", path="$.action"
        )
    if quota.kind is QuotaKind.JOBS_PER_HOUR and quota.action is QuotaAction.WAIT and quota.ceiling < 1:
        raise Invalid(
            "With fewer than one job an hour no job that waits would ever start: set 1 or more, or refuse them.",
            path="$.ceiling",
        )
    return replace(quota, ceiling=int(quota.ceiling)) if quota.kind in OF_MONEY else quota


class QuotaBook:
    """Keeps all quotas and what is used of them, and is asked for every job that is admitted or placed."""

    def __init__(
        self,
        quotas: Iterable[Quota],
        roles: Mapping[str, str],
        names: Mapping[str, str],
        usage: UseLedger,
        currency: str = DEFAULT_CURRENCY,
    ) -> None:
        self.quotas = tuple(quotas)
        self.currency = currency
        self.names = names
        """Of people and teams, by id."""
        self.usage = usage
        self.now = 0.0
        """When the running step began (`advance`)."""
        self.turned_back = 0
        """How often the clock was set back: what was used up may be there again."""
        self.roles = roles
        """Of every user, by id."""
        self._named: dict[tuple[QuotaScope, str], list[Quota]] = {}
        for quota in self.quotas:
            self._named.setdefault((quota.scope, quota.subject), []).append(quota)
        self.counts_starts = any(map(_of_starts, self.quotas))
        self.counts_storage = any(quota.kind is QuotaKind.STORED_BYTES for quota in self.quotas)

    def advance(self, now: float) -> None:
        """Notes when a step begins."""
        if now < self.now:
            self.turned_back += 1
        self.now = now

    def concerning(self, owner: str, team_id: str) -> Iterable[tuple[Quota, str]]:
        """Returns each quota that such a job is counted in, with the account it is counted by."""
        role = self.roles.get(owner, "")
        for key, account in (
            ((QuotaScope.PERSON, owner), person(owner)),
            ((QuotaScope.TEAM, team_id), team(team_id)),
            ((QuotaScope.ROLE, role), person(owner)),
            ((QuotaScope.EACH, ""), person(owner)),
            ((QuotaScope.ALL, ""), EVERYBODY),
        ):
            for quota in self._named.get(key, ()) if key[1] or key[0] not in OF_ONE else ():
                yield quota, account

    def keeps_waiting(self, job: Job) -> QuotaStanding | None:
        """Returns the quota for which this job has to wait, if there is one."""
        for quota, account in self.concerning(job.owner, job.team):
            if quota.action is QuotaAction.WAIT:
                standing = self.standing(quota, account, self.now)
                if standing.used + _needs(quota, job) > quota.ceiling:
                    return standing
        return None

    def keeps_everybody_waiting(self, gpus: int) -> bool:
        """Tells whether every job that asks for so many GPUs, or more, has to wait for a quota of all."""
        return self._keeps_all_waiting((QuotaScope.ALL, ""), EVERYBODY, gpus)

    def keeps_team_waiting(self, team_id: str, gpus: int) -> bool:
        return bool(team_id) and self._keeps_all_waiting((QuotaScope.TEAM, team_id), team(team_id), gpus)

    def keeps_person_waiting(self, owner: str, gpus: int) -> bool:
        """Tells the same of a person's own quotas and those of their role."""
        role, account = self.roles.get(owner, ""), person(owner)
        return (
            self._keeps_all_waiting((QuotaScope.PERSON, owner), account, gpus)
            or self._keeps_all_waiting((QuotaScope.EACH, ""), account, gpus)
            or (bool(role) and self._keeps_all_waiting((QuotaScope.ROLE, role), account, gpus))
        )

    def _keeps_all_waiting(self, key: tuple[QuotaScope, str], account: str, gpus: int) -> bool:
        """Tells whether a quota keeps all such jobs waiting, however often they were tried.

        A quota of starts is not asked: jobs that have started once pass it, and it frees itself as time passes.
        """
        return any(
            quota.action is QuotaAction.WAIT
            and not _of_starts(quota)
            and self.standing(quota, account, self.now).used + _needs_with(quota, gpus) > quota.ceiling
            for quota in self._named.get(key, ())
        )

    def passed_by(self, job: Job, actions: Collection[QuotaAction]) -> list[QuotaStanding]:
        """Returns the quotas that this job, once admitted, would be above; those that wait before it count as well."""
        passed = []
        for quota, account in self.concerning(job.owner, job.team):
            if quota.action in actions and quota.kind is not QuotaKind.STORED_BYTES:
                standing = self.standing(quota, account, self.now, with_waiting=True)
                if standing.used + _needs(quota, job) > quota.ceiling:
                    passed.append(standing)
        return passed

    def nearly_reached(self, job: Job) -> list[QuotaStanding]:
        """Returns the quotas of such jobs of which so much is used that their owner is told."""
        standings = [
            self.standing(quota, account, self.now, with_waiting=True)
            for quota, account in self.concerning(job.owner, job.team)
            if quota.kind is not QuotaKind.STORED_BYTES
        ]
        return [one for one in standings if is_nearly_reached(one)]

    def frees_a_start(self, now: float) -> bool:
        """Tells whether a counted start is more than an hour old by now, so that a waiting job may start."""
        oldest = self.usage.oldest_start() if self.counts_starts else None
        return oldest is not None and oldest <= now - HOUR_S

    def forget_old_starts(self, now: float) -> None:
        self.usage.forget_starts_until(now - HOUR_S)

    def standing(
        self, quota: Quota, account: str, now: float, *, with_waiting: bool = False
    ) -> QuotaStanding:
        """Returns how much of the quota is used; storage is not counted here, since it takes a scan of its rows."""
        usage = self.usage
        if quota.kind in OF_MONEY:
            return self._standing_of_money(quota, account, now)
        used, frees_at = 0.0, None
        match quota.kind:
            case QuotaKind.RUNNING_JOBS:
                used = usage.running[account] + (usage.waiting[account] if with_waiting else 0)
            case QuotaKind.GPUS:
                used = usage.gpus[account] + (usage.waiting_gpus[account] if with_waiting else 0)
            case QuotaKind.GPU_HOURS_DAY:
                used, frees_at = usage.gpu_hours(usage.day, account, now), usage.day.ends
            case QuotaKind.GPU_HOURS_MONTH:
                used, frees_at = usage.gpu_hours(usage.month, account, now), usage.month.ends
            case QuotaKind.JOBS_PER_HOUR:
                since = usage.started_since if _of_starts(quota) else usage.submitted_since
                moments = since(account, now - HOUR_S)
                used, frees_at = len(moments), _room_at(moments, quota.ceiling)
        return QuotaStanding(quota=quota, account=account, used=used, frees_at=frees_at)

    def _standing_of_money(self, quota: Quota, account: str, now: float) -> QuotaStanding:
        usage = self.usage
        window = usage.day if quota.kind is QuotaKind.MONEY_DAY else usage.month
        spent = usage.spent_micros(window, account, now)
        return QuotaStanding(
            quota=quota,
            account=account,
            used=spent,
            frees_at=window.ends,
            at_least=not usage.knows_every_price(window, account),
            forecast=forecast_of(
                spent, usage.hourly[account], int(quota.ceiling), window.begins, window.ends, now
            ),
        )

    def accounts_of(self, quota: Quota) -> list[str]:
        """Returns every account that the quota is counted for and that has used something of late."""
        match quota.scope:
            case QuotaScope.ALL:
                return [EVERYBODY]
            case QuotaScope.PERSON:
                return [person(quota.subject)]
            case QuotaScope.TEAM:
                return [team(quota.subject)]
        people = (one for one in self.usage.known_accounts() if one.startswith(person("")))
        if quota.scope is QuotaScope.EACH:
            return sorted(people)
        return sorted(one for one in people if self.roles.get(one.removeprefix(person(""))) == quota.subject)


def is_nearly_reached(standing: QuotaStanding) -> bool:
    return standing.used >= standing.quota.warn_at * standing.quota.ceiling


def stored_standing(quota: Quota, account: str, stored_bytes: int) -> QuotaStanding:
    """Returns the standing of a storage quota, for which the caller has counted the storage's rows."""
    return QuotaStanding(quota=quota, account=account, used=stored_bytes)


def _of_starts(quota: Quota) -> bool:
    """Tells whether the quota counts starts: one for which jobs wait does, any other counts submissions."""
    return quota.kind is QuotaKind.JOBS_PER_HOUR and quota.action is QuotaAction.WAIT


def _room_at(moments: Sequence[float], ceiling: float) -> float | None:
    """Returns when one more fits, or one fewer counts where there is room already."""
    over = max(0, len(moments) - floor(ceiling))
    return moments[over] + HOUR_S if over < len(moments) else None


def _needs(quota: Quota, job: Job) -> float:
    """Returns what one more such job takes of it."""
    return 0 if _of_starts(quota) and job.attempts else _needs_with(quota, job.requires.gpus)


def _needs_with(quota: Quota, gpus: int) -> float:
    """Returns what one more job with these GPUs takes of it.

    Hours and money are not known before: any that are left suffice.
    """
    match quota.kind:
        case QuotaKind.GPUS:
            return gpus
        case QuotaKind.RUNNING_JOBS | QuotaKind.JOBS_PER_HOUR:
            return 1
        case QuotaKind.MONEY_DAY | QuotaKind.MONEY_MONTH:
            return 1 if gpus else 0
        case _:
            return 1e-9 if gpus else 0.0


def quota_params(book: QuotaBook, standing: QuotaStanding) -> dict[str, Any]:
    """Returns which quota it is, whose, how much of it is used, and when some of it becomes available again."""
    quota = standing.quota
    params: dict[str, Any] = {
        "quota": quota.id,
        "kind": quota.kind.value,
        "whose": whose(quota, book.names),
        "used": round(standing.used, 2),
        "ceiling": quota.ceiling,
    }
    if quota.kind in OF_MONEY:
        params |= {
            "used": amount_text(int(standing.used), book.currency),
            "ceiling": amount_text(int(quota.ceiling), book.currency),
            "used_micros": standing.used,
            "ceiling_micros": quota.ceiling,
            "at_least": standing.at_least,
        }
    if standing.frees_at is not None:
        at = datetime.fromtimestamp(standing.frees_at, UTC)
        params |= {"frees": at.strftime("%Y-%m-%d %H:%M UTC"), "frees_at": standing.frees_at}
    return params


def whose(quota: Quota, names: Mapping[str, str]) -> str:
    """Returns the quota's owner as the command line writes it."""
    return f"{quota.scope} {names.get(quota.subject, quota.subject)}" if quota.subject else quota.scope.value
