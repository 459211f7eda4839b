"""Explains to a person why a job waits, by the steps of the matcher itself."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Hold, Job, JobState, Requirements, Target, ended_badly
from simpletuner_fleet.core.jobs.start_time import shown
from simpletuner_fleet.core.money.amounts import amount_text
from simpletuner_fleet.core.money.ceilings import LEAST_RUN_S
from simpletuner_fleet.core.money.prices import NO_PRICES, PriceList, hourly_price
from simpletuner_fleet.core.placement.asked_labels import as_asked, as_had
from simpletuner_fleet.core.placement.label_match import labels_match
from simpletuner_fleet.core.placement.matching import (
    BY_WORK,
    EVERYBODY,
    NEVER,
    STEPS,
    Occupancy,
    Refusal,
    allocate,
    fitting_gpus,
    gpus_left_idle,
)
from simpletuner_fleet.core.placement.reason_sentences import fixes, sentence
from simpletuner_fleet.core.placement.reasons import (
    CODE_OF_REFUSAL,
    IMPOSSIBLE,
    REASONS,
    Code,
    Kind,
)
from simpletuner_fleet.core.placement.shares import Shares
from simpletuner_fleet.core.placement.team_allowlist import TeamAllowlist
from simpletuner_fleet.core.placement.verdicts import Verdicts
from simpletuner_fleet.core.workers.worker import Connection, Worker

MAX_WORKERS_TOLD = 50
MAX_IN_A_SENTENCE = 3

NOT_AT_WORK = frozenset(
    {
        *(Refusal.OFFLINE, Refusal.RECONNECTING, Refusal.DRAINING, Refusal.INTERRUPTED, Refusal.SET_ASIDE),
        Refusal.NOT_LISTENING,
    }
)
OUT_OF_QUESTION = frozenset({Refusal.NOT_REMOTE, Refusal.NOT_LOCAL, Refusal.KEPT_FOR_OTHERS})
"""What such workers have is not told, since it would not help."""
PAID_TOO_MUCH = frozenset({Code.COST_LIMIT, Code.PRICE_UNKNOWN})
ByRefusal = dict[Refusal | None, list[tuple[Worker, Occupancy]]]


class FunnelStep(Struct, frozen=True):
    step: str
    left: int
    rule: str


class WorkerVerdict(Struct, frozen=True):
    id: str
    name: str
    fails: tuple[str, ...]
    gpus_held_through: tuple[str, ...] = ()
    """The ids of other workers of the same machine that use its GPUs."""
    has_labels: tuple[str, ...] = ()
    """What it has where the job asks for other labels."""


class Survey(Struct, frozen=True, kw_only=True):
    """Tells which workers of the fleet could take a job with these requirements, and why others could not."""

    code: Code
    params: dict[str, Any]
    funnel: tuple[FunnelStep, ...]
    workers: tuple[WorkerVerdict, ...]
    fixes: tuple[str, ...]
    possible: int
    """How many workers could ever take such a job."""
    free: int = 0
    """How many of them have room for it now."""
    follows_work: bool = True
    """Whether it may change with what workers hold, and not only with the workers themselves."""


class Explanation(Struct, frozen=True, kw_only=True):
    state: JobState
    as_of: float
    kind: Kind
    code: Code
    sentence: str
    params: dict[str, Any]
    funnel: tuple[FunnelStep, ...] = ()
    workers: tuple[WorkerVerdict, ...] = ()
    ahead: int = 0
    fixes: tuple[str, ...] = ()


class Ceiling(Struct, frozen=True):
    """Describes a limit or a quota that is reached."""

    code: Code
    params: dict[str, Any]


def has_joined(worker: Worker) -> bool:
    """Tells whether the worker has ever registered: before that nothing is known of it."""
    return worker.registered_at is not None or worker.connection is not Connection.CONNECTING


def survey(
    requires: Requirements,
    workers: Iterable[tuple[Worker, Occupancy]],
    refused_by: tuple[str, ...] = (),
    allowlist: TeamAllowlist | None = None,
    prices: PriceList = NO_PRICES,
) -> Survey:
    return survey_by(Verdicts(requires, refused_by, allowlist, prices), workers)


def survey_by(known: Verdicts, workers: Iterable[tuple[Worker, Occupancy]]) -> Survey:
    """Surveys the workers; `known` holds the requirements, and earlier verdicts of workers on them."""
    requires, allowlist, prices = known.requires, known.allowlist, known.prices
    starting: list[Worker] = []
    verdicts = known.of(_joined(workers, starting))
    by_refusal: ByRefusal = defaultdict(list)
    for worker, occupancy, refusal in verdicts:
        by_refusal[refusal].append((worker, occupancy))
    refused = Counter({refusal: len(those) for refusal, those in by_refusal.items()})
    left = len(verdicts)
    joined = "1 worker has joined" if left == 1 else f"{left} workers have joined"
    funnel = [FunnelStep(EVERYBODY, left, joined)]
    for step in STEPS:
        if refused[step]:
            left -= refused[step]
            funnel.append(FunnelStep(step.name.lower(), left, f"{refused[step]} ruled out: {step.value}"))
    code = _code(requires, refused, left, local_is_starting=bool(starting))
    if (
        code in IMPOSSIBLE
        and requires.target is Target.AUTO
        and all(worker.local for worker, _, _ in verdicts)
    ):
        code = Code.NO_WORKERS
    eligible = [worker for worker, _, refusal in verdicts if refusal not in OUT_OF_QUESTION]
    params = _params(code, requires, eligible)
    params |= _more_params(code, by_refusal, requires, allowlist, prices)
    nearest = islice(
        ((step, *one) for step in reversed(STEPS) for one in by_refusal.get(step, ())), MAX_WORKERS_TOLD
    )
    shown = [
        WorkerVerdict(
            worker.id,
            worker.name,
            (refusal.name.lower(),),
            tuple(sorted(occupancy.through)) if refusal in BY_WORK else (),
            as_had(requires.labels, worker) if refusal is Refusal.LABELS_DIFFER else (),
        )
        for refusal, worker, occupancy in nearest
    ]
    return Survey(
        code=code,
        params=params,
        funnel=tuple(funnel),
        workers=tuple(shown),
        fixes=fixes(code, params),
        possible=sum(many for refusal, many in refused.items() if refusal is None or refusal not in NEVER),
        free=refused[None],
        follows_work=any(refused[one] for one in BY_WORK),
    )


def _joined(
    workers: Iterable[tuple[Worker, Occupancy]], starting: list[Worker]
) -> Iterator[tuple[Worker, Occupancy]]:
    """Yields the workers that have joined; the server's own, before it has, is added to `starting`."""
    for worker, occupancy in workers:
        if has_joined(worker):
            yield worker, occupancy
        elif worker.local:
            starting.append(worker)


def _code(
    requires: Requirements, refused: Counter[Refusal | None], left: int, *, local_is_starting: bool
) -> Code:
    if left:
        return Code.BEHIND_OTHERS
    if requires.target is Target.LOCAL:
        now = [step for step in reversed(STEPS) if step not in NEVER and refused[step]]
        if not now:  # before it has joined nobody knows which GPUs it has
            return Code.ALL_MATCHING_OFFLINE if local_is_starting else Code.LOCAL_NO_GPU
        return CODE_OF_REFUSAL[now[0]] if now[0] in NOT_AT_WORK else Code.LOCAL_GPU_BUSY
    got_furthest = [step for step in reversed(STEPS) if refused[step]]
    return CODE_OF_REFUSAL[got_furthest[0]] if got_furthest else Code.NO_WORKERS


def _params(code: Code, requires: Requirements, workers: list[Worker]) -> dict[str, Any]:
    """Returns figures for the reason; `workers` are in the place that was asked for, and not kept for others."""
    params: dict[str, Any] = {"workers": len(workers), "gpus": requires.gpus}
    if code is Code.NODES_MATCH_NONE:
        params |= {
            "nodes": requires.nodes,
            "largest_nodes": max((worker.nodes for worker in workers), default=0),
        }
    elif code is Code.GPU_COUNT_TOO_LARGE:
        params["largest"] = max((worker.gpu_count for worker in workers), default=0)
    elif code is Code.ALL_MATCHING_RECONNECTING:
        gone = [worker for worker in workers if worker.connection is Connection.RECONNECTING]
        latest = max(gone, key=lambda worker: worker.offline_since or 0.0)
        params |= {"worker": latest.name, "since": latest.offline_since or 0.0, "ago_s": 0.0}
    elif code is Code.VRAM_TOO_SMALL:
        params["min_vram_gb"] = requires.min_vram_gb
        params["largest_gb"] = max(_vram_of_nth(worker, requires.gpus) for worker in workers)
    elif code is Code.WRONG_ACCELERATOR:
        params["accelerator"] = requires.accelerator
    elif code is Code.TRAINER_MISSING:
        params["trainer"] = requires.trainer
    elif code is Code.DATA_TOO_LARGE:
        params["bytes"] = sum(size for _, size in requires.datasets)
        params["largest_bytes"] = max((worker.data_limit_bytes for worker in workers), default=0)
    elif code is Code.LABELS_MATCH_NONE:
        params["labels"] = dict(requires.labels)
        params["unmatched"] = [
            key
            for key, pattern in requires.labels
            if not any(labels_match(((key, pattern),), worker.effective_labels) for worker in workers)
        ]
        params["asked"] = [
            as_asked(key, pattern)
            for key, pattern in requires.labels
            if key in params["unmatched"] or not params["unmatched"]
        ]
    return params


def _more_params(
    code: Code,
    by_refusal: ByRefusal,
    requires: Requirements,
    allowlist: TeamAllowlist | None,
    prices: PriceList,
) -> dict[str, Any]:
    """Returns what is told of the workers that one reason rules out."""

    def refused_for(refusal: Refusal) -> list[Worker]:
        return [worker for worker, _ in by_refusal.get(refusal, ())]

    if code is Code.LABELS_MATCH_NONE:
        return {"have": _had_instead(refused_for(Refusal.LABELS_DIFFER), requires)}
    if code is Code.TOO_DEAR:
        return _prices_of(refused_for(Refusal.TOO_DEAR), requires, prices)
    if code is Code.ALL_MATCHING_NOT_LISTENING:
        return {"worker": min(worker.name for worker in refused_for(Refusal.NOT_LISTENING))}
    if code in PAID_TOO_MUCH:
        unpriced, dear = refused_for(Refusal.PRICE_UNKNOWN), refused_for(Refusal.COST_LIMIT)
        return _what_is_left(unpriced, dear, requires, allowlist, prices)
    if code in (Code.ALL_MATCHING_BUSY, Code.LOCAL_GPU_BUSY):
        return _held_back(by_refusal.get(Refusal.BUSY, []), requires)
    return {}


def _had_instead(workers: list[Worker], requires: Requirements) -> list[str]:
    """Names a few workers with the labels that they have instead of those that the job asks for."""
    had = [(worker.name, as_had(requires.labels, worker)) for worker in workers]
    sentences = [f"{name}: {' '.join(labels)}" for name, labels in had if labels]
    return [*sentences[:MAX_IN_A_SENTENCE], *("…" for _ in sentences[MAX_IN_A_SENTENCE:][:1])]


def _prices_of(workers: list[Worker], requires: Requirements, prices: PriceList) -> dict[str, Any]:
    """Returns what the cheapest of those costs that only their price rules out, and what the job allows."""
    costs = {worker.name: hourly_price(prices, worker, worker.gpus) or 0 for worker in workers}
    cheapest = min(costs, key=lambda name: (costs[name], name))
    allowed = requires.max_price_micros or 0
    return {
        "worker": cheapest,
        "hourly_micros": costs[cheapest],
        "allowed_micros": allowed,
        "price": amount_text(costs[cheapest], prices.currency),
        "allowed": amount_text(allowed, prices.currency),
    }


def _what_is_left(
    unpriced: list[Worker],
    dear: list[Worker],
    requires: Requirements,
    allowlist: TeamAllowlist | None,
    prices: PriceList,
) -> dict[str, Any]:
    """Returns what is left of the job's ceiling, and what an hour costs on the cheapest worker that only that rules out."""
    room = requires.room_micros or 0
    left = {
        "left_micros": room,
        "left": amount_text(room, prices.currency),
        "least_s": LEAST_RUN_S,
        "unpriced": [worker.name for worker in unpriced[:MAX_IN_A_SENTENCE]],
    }
    costs = {
        worker.name: hourly_price(prices, worker, fitting_gpus(worker, requires, allowlist)[: requires.gpus])
        or 0
        for worker in dear
    }
    if not costs:
        return left
    cheapest = min(costs, key=lambda name: (costs[name], name))
    price = amount_text(costs[cheapest], prices.currency)
    return {**left, "worker": cheapest, "hourly_micros": costs[cheapest], "price": price}


def _held_back(busy: list[tuple[Worker, Occupancy]], requires: Requirements) -> dict[str, Any]:
    """Names a worker whose GPUs would be enough, if it took more jobs at a time."""
    for worker, occupancy in busy:
        idle = gpus_left_idle(worker, occupancy)
        if idle and requires.gpus and allocate(worker, occupancy, requires):
            return {"full_worker": worker.name, "idle_gpus": idle, "at_once": worker.max_jobs}
    return {}


def _vram_of_nth(worker: Worker, gpus: int) -> float:
    """Returns the memory that this many GPUs of the worker have at least."""
    largest_first = sorted((gpu.vram_gb for gpu in worker.gpus), reverse=True)
    return largest_first[gpus - 1] if len(largest_first) >= gpus else 0.0


def explain(
    job: Job,
    fleet: Survey,
    *,
    limit: Ceiling | None,
    ahead: int,
    now: float,
    held_until: float | None = None,
    ended: Collection[Job] = (),
) -> Explanation:
    """Explains why the job waits; `limit` is one that is reached, if any.

    After a restore nothing is placed before `held_until`, whatever is free. `ended` are those of the jobs it depends on
    that have ended: the job is told of it a little later.
    """
    code, params = _of_dependencies(job, ended) or _why(job, fleet, limit, now, held_until)
    waits_for_workers = job.state is JobState.QUEUED
    help_with = fleet.fixes if code is fleet.code else fixes(code, params)
    return Explanation(
        state=job.state,
        as_of=now,
        kind=REASONS[code].kind,
        code=code,
        sentence=sentence(code, params),
        params=params,
        funnel=fleet.funnel if waits_for_workers else (),
        workers=fleet.workers if waits_for_workers else (),
        ahead=ahead if waits_for_workers else 0,
        fixes=help_with if waits_for_workers else (),
    )


def by_share(
    explained: Explanation, shares: Shares, team: str, waiting: Callable[[], Collection[str]]
) -> Explanation:
    """Explains the wait by the fair share, if the job's team used more than its share and others wait with less.

    Other teams are counted and not named: whoever asks may not know of them.
    """
    if explained.code not in (Code.ALL_MATCHING_BUSY, Code.BEHIND_OTHERS):
        return explained
    used, due = shares.used_part(team), shares.due_part(team)
    if used <= due:
        return explained
    first = sum(shares.goes_before(other, team) for other in waiting())
    if not first:
        return explained
    figures = {"used_percent": round(100 * used), "share_percent": round(100 * due), "teams_ahead": first}
    params = {**explained.params, **figures}
    return replace(
        explained,
        code=Code.OVER_SHARE,
        kind=REASONS[Code.OVER_SHARE].kind,
        params=params,
        sentence=sentence(Code.OVER_SHARE, params),
        fixes=(),
    )


def _spent(job: Job, code: Code) -> dict[str, Any]:
    """Returns what the job has cost and may cost, where it waits for that."""
    if code not in PAID_TOO_MUCH:
        return {}
    return {"max_cost_micros": job.max_cost_micros, "spent_micros": job.spent_micros}


def _of_dependencies(job: Job, ended: Collection[Job]) -> tuple[Code, dict[str, Any]] | None:
    """Returns what a blocked job waits for where it is other jobs, or that it is about to be told how they ended."""
    if job.state is not JobState.BLOCKED:
        return None
    bad = [one.id for one in ended if ended_badly(one)]
    over = {one.id for one in ended}
    pending = [id for id in job.depends_on if id not in over]
    if bad or (job.hold is Hold.DEPENDENCY and over and not pending):
        return Code.DEPENDENCY, {"depends_on": list(job.depends_on), "ended": bad or list(job.depends_on)}
    return (Code.DEPENDENCY, {"depends_on": pending}) if job.hold is Hold.DEPENDENCY else None


def _why(
    job: Job, fleet: Survey, limit: Ceiling | None, now: float, held_until: float | None
) -> tuple[Code, dict[str, Any]]:
    own = _of_its_own(job, now)
    if own is not None:
        return own
    # Before all that workers say: of a team that cannot be read nobody knows which of them it may use.
    if limit and limit.code is Code.SETTING_UNREADABLE:
        return limit.code, limit.params
    if fleet.code in IMPOSSIBLE or fleet.code in PAID_TOO_MUCH:
        return fleet.code, fleet.params | _spent(job, fleet.code)
    if held_until is not None and now < held_until:
        return Code.HELD_AFTER_RESTORE, {"wait_s": held_until - now, "until": held_until}
    if job.hold is Hold.BACKOFF:
        return Code.RETRY_BACKOFF, {"wait_s": max(0.0, (job.not_before or now) - now)}
    if limit:
        return limit.code, limit.params
    if fleet.code is Code.ALL_MATCHING_RECONNECTING:
        return fleet.code, {**fleet.params, "ago_s": max(0.0, now - fleet.params["since"])}
    return fleet.code, fleet.params


def _of_its_own(job: Job, now: float) -> tuple[Code, dict[str, Any]] | None:
    """Returns why the job does not wait for workers, if it does not."""
    if job.hold is Hold.APPROVAL:
        return Code.APPROVAL_REQUIRED, {}
    if job.state is not JobState.QUEUED:
        return Code.NOT_WAITING, {"state": job.state}
    if job.hold is Hold.START_TIME and job.not_before is not None:
        return Code.START_TIME, {
            "wait_s": max(0.0, job.not_before - now),
            "until": job.not_before,
            "starts": shown(job.not_before),
        }
    return None
