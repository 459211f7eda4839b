"""Tells a job that no worker can take now that a machine is on its way, or why none is."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Job, JobState, Target
from simpletuner_fleet.core.money.amounts import amount_text
from simpletuner_fleet.core.placement.explain import Explanation
from simpletuner_fleet.core.placement.reason_sentences import fixes, sentence
from simpletuner_fleet.core.placement.reasons import IMPOSSIBLE, REASONS, Code
from simpletuner_fleet.core.provisioning.machine import ON_ITS_WAY, Machine
from simpletuner_fleet.core.provisioning.offers import TeamAllowlists, expected_worker, fits, with_price
from simpletuner_fleet.core.provisioning.pool import PROVIDER_NAMES, MachinePool, NoMachine

WHILE_NO_WORKER = IMPOSSIBLE | {
    Code.ALL_MATCHING_BUSY,
    Code.OVER_SHARE,
    Code.ALL_MATCHING_OFFLINE,
    Code.ALL_MATCHING_RECONNECTING,
    Code.ALL_MATCHING_DRAINING,
    Code.ALL_MATCHING_INTERRUPTED,
    Code.ALL_MATCHING_SET_ASIDE,
    Code.ALL_MATCHING_UNUSABLE,
}
"""For all else that a job waits for, no machine would help."""
DECIDED_WITHIN_S = 60.0
"""Beyond this a pool that says nothing of a job has nothing to say."""


def with_machines(
    explanation: Explanation,
    job: Job,
    pools: Sequence[MachinePool],
    machines: Sequence[Machine],
    team_allowlists: TeamAllowlists,
    currency: str,
) -> Explanation:
    if job.state is not JobState.QUEUED or explanation.code not in WHILE_NO_WORKER or not pools:
        return explanation
    explanation = kept_for_others(explanation, job, pools)
    pools = [pool for pool in pools if pool.is_for(job)]
    now = explanation.as_of
    coming = _coming(job, pools, machines, team_allowlists)
    if coming is not None:
        provider = next(pool.request.provider for pool in pools if pool.name == coming.pool)
        return _told(explanation, Code.WAITING_FOR_MACHINE, machine_params(coming, provider, now, currency))
    refusals = [pool.no_machine[job.line] for pool in pools if job.line in pool.no_machine]
    if not refusals:
        return _while_asking(explanation, job, pools)
    known = [refusal for refusal in refusals if refusal.code in REASONS]
    if not known:
        return explanation
    # A pool that has such machines, and brings none now, says more than one that never had any.
    refusal = min(known, key=lambda one: one.code == Code.NO_MACHINE_OFFERED)
    return _told(explanation, Code(refusal.code), _at_this_moment(refusal, now, currency))


def kept_for_others(explanation: Explanation, job: Job, pools: Sequence[MachinePool]) -> Explanation:
    """Adds to "no worker has joined" that pools bring machines, but none for this job.

    Which pools they are is not told.
    """
    bring = [pool for pool in pools if pool.brings_machines]
    if explanation.code is not Code.NO_WORKERS or not bring or any(pool.is_for(job) for pool in bring):
        return explanation
    return _told(explanation, Code.KEPT_FOR_OTHERS, {**explanation.params, "pools": len(bring)})


def _while_asking(explanation: Explanation, job: Job, pools: Sequence[MachinePool]) -> Explanation:
    """Says that a pool is being asked, while none has decided or its provider cannot be reached.

    That the fleet itself is too small would be only half the truth.
    """
    asked = [pool for pool in pools if pool.brings_machines]
    helps = explanation.code in IMPOSSIBLE and job.requires.target is not Target.LOCAL
    troubled = next((pool for pool in asked if pool.trouble), None)
    if not helps or not asked or (troubled is None and explanation.as_of - job.created_at > DECIDED_WITHIN_S):
        return explanation
    pool = troubled or asked[0]
    return _told(explanation, Code.ASKING_FOR_MACHINE, {"pool": pool.name, "trouble": pool.trouble})


def machine_params(machine: Machine, provider: str, now: float, currency: str) -> dict[str, Any]:
    return {
        "pool": machine.pool,
        "provider": PROVIDER_NAMES.get(provider, provider),
        "machine": machine_text(machine),
        "price": amount_text(machine.hourly_micros, currency),
        "hourly_micros": machine.hourly_micros,
        "phase": str(machine.state),
        "since_s": max(0.0, now - (machine.asked_at or machine.created_at)),
    }


def machine_text(machine: Machine) -> str:
    if not machine.gpus:
        return "CPU"
    memory = f" {machine.vram_gb:g} GB" if machine.vram_gb else ""
    kind = f"{machine.gpu_name or 'GPU'}{memory}"
    if machine.nodes > 1:
        return f"{machine.nodes} x {machine.gpus // machine.nodes} x {kind}"
    return f"{machine.gpus} x {kind}"


def _coming(
    job: Job, pools: Sequence[MachinePool], machines: Sequence[Machine], team_allowlists: TeamAllowlists
) -> Machine | None:
    """Returns the machine on its way: the one wanted for this job before any other that fits it."""
    pool_of = {pool.name: pool for pool in pools}
    fitting = [
        machine
        for machine in machines
        if machine.state in ON_ITS_WAY
        and machine.pool in pool_of
        and fits(
            with_price(expected_worker(pool_of[machine.pool], machine), machine.hourly_micros),
            job.requires,
            team_allowlists,
        )
    ]
    return min(fitting, key=lambda one: (one.for_job != job.id, one.asked_at or one.created_at), default=None)


def _at_this_moment(refusal: NoMachine, now: float, currency: str) -> dict[str, Any]:
    params = dict(refusal.params)
    if (until := params.get("until")) is not None:
        params["wait_s"] = max(0.0, until - now)
    if (hourly_micros := params.get("hourly_micros")) is not None:
        params["price"] = amount_text(hourly_micros, currency)
    if (left_micros := params.get("left_micros")) is not None:
        params["left"] = amount_text(left_micros, currency)
    if (allowed_micros := params.get("allowed_micros")) is not None:
        params["allowed"] = amount_text(allowed_micros, currency)
    return params


def _told(explanation: Explanation, code: Code, params: dict[str, Any]) -> Explanation:
    return replace(
        explanation,
        kind=REASONS[code].kind,
        code=code,
        sentence=sentence(code, params),
        params=params,
        fixes=fixes(code, params),
    )
