"""What a job is told of machines before a pool has decided about it, and where its provider cannot be asked."""

from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Requirements, Target
from simpletuner_fleet.core.placement.explain import Explanation
from simpletuner_fleet.core.placement.reasons import Code, Kind
from simpletuner_fleet.core.provisioning.pool import MachinePool, NoMachine
from simpletuner_fleet.core.provisioning.waiting import DECIDED_WITHIN_S, with_machines
from tests.core.builders import NOW, a_job
from tests.core.provisioning.provisioning_kit import a_pool

REFUSAL = NoMachine(code=Code.NO_MACHINE_OFFERED, params={"pool": "cloud", "gpus": 1, "min_vram_gb": 80.0})


def explained(*pools: MachinePool, after_s: float = 0.0, target: Target = Target.AUTO) -> Explanation:
    job = a_job(requires=Requirements(gpus=1, target=target))
    too_small = Explanation(
        state=job.state,
        as_of=NOW + after_s,
        kind=Kind.CHANGE,
        code=Code.GPU_COUNT_TOO_LARGE,
        sentence="too few GPUs",
        params={},
        fixes=("Adjust --num_processes in the training config.",),
    )
    return with_machines(too_small, job, pools, [], {}, "USD")


def test_a_job_that_a_pool_has_not_decided_about_yet_is_not_told_to_become_smaller() -> None:
    asking = explained(a_pool())
    assert (asking.code, asking.kind, asking.fixes) == (Code.ASKING_FOR_MACHINE, Kind.WAIT, ())
    assert asking.sentence == "no worker fits: the pool cloud is being asked for a machine"


def test_a_pool_whose_provider_cannot_be_asked_says_so_for_as_long_as_that_lasts() -> None:
    asking = explained(replace(a_pool(), trouble="RunPod: no answer within 20 s"), after_s=10_000.0)
    assert asking.sentence == (
        "no worker fits, and the pool cloud cannot be asked for a machine: RunPod: no answer within 20 s"
    )


def test_what_the_fleet_lacks_is_told_where_no_pool_will_help() -> None:
    off = a_pool(enabled=False)
    for alone in (explained(), explained(off), explained(a_pool(), target=Target.LOCAL)):
        assert alone.code is Code.GPU_COUNT_TOO_LARGE
    assert explained(a_pool(), after_s=DECIDED_WITHIN_S + 1.0).code is Code.GPU_COUNT_TOO_LARGE


def test_that_pools_are_kept_for_others_is_told_without_their_names() -> None:
    job = a_job(requires=Requirements(gpus=1))
    nobody = Explanation(
        state=job.state,
        as_of=NOW,
        kind=Kind.ADMIN,
        code=Code.NO_WORKERS,
        sentence="no worker has joined yet",
        params={"workers": 0, "gpus": 1},
    )
    kept = replace(a_pool("secret", people=("u_else",)), trouble="down", no_machine={job.line: REFUSAL})
    waiting = with_machines(nobody, job, [kept], [], {}, "USD")
    assert (waiting.code, waiting.kind) == (Code.KEPT_FOR_OTHERS, Kind.ADMIN)
    assert (
        waiting.sentence == "no worker has joined yet, and every pool is reserved for other people or teams"
    )
    assert "secret" not in str(waiting)
    off = a_pool("secret", people=("u_else",), enabled=False)
    assert with_machines(nobody, job, [off], [], {}, "USD") == nobody
    assert with_machines(nobody, job, [kept, a_pool()], [], {}, "USD").params["pool"] == "cloud"
    assert explained(kept).code is Code.GPU_COUNT_TOO_LARGE


def test_a_decision_goes_before() -> None:
    line = a_job(requires=Requirements(gpus=1, target=Target.AUTO)).line
    decided = replace(a_pool(), no_machine={line: REFUSAL})
    assert explained(decided).code is Code.NO_MACHINE_OFFERED
