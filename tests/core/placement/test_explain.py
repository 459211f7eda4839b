from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Hold, Job, JobState, Requirements, Target
from simpletuner_fleet.core.placement.explain import (
    MAX_WORKERS_TOLD,
    Ceiling,
    Survey,
    explain,
    has_joined,
    survey,
)
from simpletuner_fleet.core.placement.matching import FREE, Occupancy, gpus_left_idle, why_never, why_not_now
from simpletuner_fleet.core.placement.reason_sentences import sentence
from simpletuner_fleet.core.placement.reasons import IMPOSSIBLE, REASONS, Code, Kind
from simpletuner_fleet.core.placement.team_allowlist import TeamAllowlist
from simpletuner_fleet.core.workers.audience import Audience
from simpletuner_fleet.core.workers.start_trouble import StartTrouble
from simpletuner_fleet.core.workers.worker import AdminState, Connection, Worker
from tests.core.builders import ENDS, NOW, a_gpu, a_job, a_worker

BUSY = Occupancy(1, frozenset({"GPU-w_1-0"}))
REMOTE = Requirements(target=Target.WORKER)


def asked(requires: Requirements, *workers: Worker, held: Occupancy = FREE) -> Survey:
    return survey(requires, [(worker, held) for worker in workers])


def code_of(job: Job, fleet: Survey, limit: Ceiling | None = None, ahead: int = 0) -> Code:
    return explain(job, fleet, limit=limit, ahead=ahead, now=NOW).code


LOCAL = Requirements(target=Target.LOCAL)
SURVEYS: list[tuple[Code, Survey]] = [
    (Code.NO_WORKERS, asked(REMOTE)),
    (Code.NO_WORKERS, asked(REMOTE, a_worker(local=True))),
    (Code.KEPT_FOR_OTHERS, asked(REMOTE, a_worker(local=True), a_worker(audience=Audience(people=("u",))))),
    (Code.TOO_DEAR, asked(Requirements(max_price_micros=1), a_worker(price_micros=2))),
    (Code.PRICE_UNKNOWN, asked(Requirements(room_micros=9), a_worker())),
    (Code.COST_LIMIT, asked(Requirements(room_micros=9), a_worker(price_micros=3_000_000))),
    (Code.LABELS_MATCH_NONE, asked(Requirements(labels=(("team", "nlp"),)), a_worker())),
    (Code.NODES_MATCH_NONE, asked(Requirements(gpus=2, nodes=2), a_worker(gpus=2))),
    (Code.GPU_COUNT_TOO_LARGE, asked(Requirements(gpus=4), a_worker(gpus=2))),
    (Code.VRAM_TOO_SMALL, asked(Requirements(min_vram_gb=96), a_worker())),
    (Code.WRONG_ACCELERATOR, asked(Requirements(accelerator="rocm"), a_worker())),
    (Code.TRAINER_MISSING, asked(Requirements(trainer="command"), a_worker())),
    (Code.DATA_TOO_LARGE, asked(Requirements(datasets=(("d1", 7),)), a_worker())),
    (Code.NOT_FOR_TEAM, survey(REMOTE, [(a_worker(), FREE)], allowlist=TeamAllowlist((("room", "a"),), ()))),
    (Code.PATH_NOT_GRANTED, survey(REMOTE, [(a_worker("w_1"), FREE)], ("w_1 i_w_1",))),
    (Code.ALL_MATCHING_BUSY, asked(REMOTE, a_worker(), held=BUSY)),
    (Code.ALL_MATCHING_OFFLINE, asked(REMOTE, a_worker(connection=Connection.OFFLINE))),
    (Code.ALL_MATCHING_OFFLINE, asked(REMOTE, a_worker(connection=Connection.CONNECTING, registered_at=NOW))),
    (Code.NO_WORKERS, asked(REMOTE, a_worker(connection=Connection.CONNECTING))),
    (Code.ALL_MATCHING_DRAINING, asked(REMOTE, a_worker(admin=AdminState.DRAINING))),
    (Code.ALL_MATCHING_INTERRUPTED, asked(REMOTE, a_worker(interruption=ENDS))),
    (
        Code.ALL_MATCHING_RECONNECTING,
        asked(REMOTE, a_worker(connection=Connection.RECONNECTING, offline_since=NOW)),
    ),
    (Code.ALL_MATCHING_SET_ASIDE, asked(REMOTE, a_worker(start_trouble=StartTrouble(closed_until=NOW + 1)))),
    (Code.ALL_MATCHING_NOT_LISTENING, asked(REMOTE, a_worker(), held=Occupancy(listens=False))),
    (Code.ALL_MATCHING_NOT_LISTENING, asked(LOCAL, a_worker(local=True), held=Occupancy(listens=False))),
    (Code.ALL_MATCHING_OFFLINE, asked(LOCAL, a_worker(local=True, connection=Connection.OFFLINE))),
    (Code.ALL_MATCHING_UNUSABLE, asked(REMOTE, a_worker(gpus=(replace(a_gpu(), unusable="unhealthy"),)))),
    (Code.BEHIND_OTHERS, asked(REMOTE, a_worker())),
    (Code.LOCAL_GPU_BUSY, asked(LOCAL, a_worker(local=True), held=BUSY)),
    (Code.LOCAL_NO_GPU, asked(LOCAL)),
    (Code.LOCAL_NO_GPU, asked(LOCAL, a_worker())),
    (Code.LOCAL_NO_GPU, asked(LOCAL, a_worker(local=True, gpus=0))),
]


@pytest.mark.parametrize(("code", "fleet"), SURVEYS)
def test_the_fleet_gives_its_reason_and_the_job_repeats_it(code: Code, fleet: Survey) -> None:
    assert fleet.code is code
    explanation = explain(a_job(), fleet, limit=None, ahead=4, now=NOW)
    assert explanation.code is code
    assert explanation.kind is REASONS[code].kind
    assert explanation.sentence == sentence(code, fleet.params)
    assert explanation.fixes == fleet.fixes
    assert (explanation.ahead, explanation.as_of, explanation.state) == (4, NOW, JobState.QUEUED)
    assert (fleet.possible == 0) is (code in IMPOSSIBLE)


def test_of_the_servers_own_worker_nothing_is_said_to_be_missing_before_it_has_joined() -> None:
    starting = a_worker("own", local=True, gpus=0, connection=Connection.CONNECTING)
    assert asked(LOCAL, starting).code is Code.ALL_MATCHING_OFFLINE
    assert asked(LOCAL, starting, a_worker("w_2")).code is Code.ALL_MATCHING_OFFLINE
    assert asked(LOCAL, replace(starting, registered_at=NOW)).code is Code.LOCAL_NO_GPU


def test_who_lost_its_connection_is_named_with_the_seconds() -> None:
    gone = a_worker("gpu-1", connection=Connection.RECONNECTING, offline_since=NOW - 8)
    explanation = explain(a_job(), asked(REMOTE, gone), limit=None, ahead=0, now=NOW)
    assert explanation.sentence == "gpu-1 lost its connection 8 s ago"


@pytest.mark.parametrize(
    ("code", "job", "limit"),
    [
        (Code.APPROVAL_REQUIRED, a_job(state=JobState.BLOCKED, hold=Hold.APPROVAL), None),
        (Code.DEPENDENCY, a_job(state=JobState.BLOCKED, hold=Hold.DEPENDENCY, depends_on=("j_0",)), None),
        (Code.RETRY_BACKOFF, a_job(hold=Hold.BACKOFF, not_before=NOW + 9), None),
        (Code.START_TIME, a_job(hold=Hold.START_TIME, not_before=NOW + 9, start_at=NOW + 9), None),
        (Code.QUOTA_USER, a_job(), Ceiling(Code.QUOTA_USER, {})),
        (Code.QUOTA_GLOBAL, a_job(), Ceiling(Code.QUOTA_GLOBAL, {})),
        (Code.NOT_WAITING, a_job(state=JobState.RUNNING), None),
    ],
)
def test_a_job_with_a_reason_of_its_own_gives_that(code: Code, job: Job, limit: Ceiling | None) -> None:
    explanation = explain(job, asked(REMOTE, a_worker()), limit=limit, ahead=4, now=NOW)
    assert explanation.code is code
    assert explanation.fixes == ()
    if job.state is not JobState.QUEUED:
        assert (explanation.funnel, explanation.workers, explanation.ahead) == ((), (), 0)


@pytest.mark.parametrize("fleet", [asked(REMOTE), asked(REMOTE, a_worker(), held=BUSY)])
def test_a_setting_that_cannot_be_read_is_the_reason_whatever_the_fleet_says(fleet: Survey) -> None:
    limit = Ceiling(Code.SETTING_UNREADABLE, {"settings": ["quota:q_1", "limits"]})
    explanation = explain(a_job(), fleet, limit=limit, ahead=4, now=NOW)
    assert (explanation.code, explanation.kind) == (Code.SETTING_UNREADABLE, Kind.ADMIN)
    assert "cannot be read (quota:q_1, limits)" in explanation.sentence
    assert "an administrator" in explanation.fixes[0]


OF_MACHINES = {
    *(Code.WAITING_FOR_MACHINE, Code.MACHINE_CEILING, Code.MACHINE_TOO_DEAR),
    Code.MACHINE_COST_LIMIT,
    *(Code.NO_MACHINE_OFFERED, Code.MACHINES_FAILED, Code.ASKING_FOR_MACHINE, Code.MACHINE_UNREADABLE),
}
"""Told in place of another; `tests/core/provisioning` and `tests/orchestrator/machines` reach them."""


def test_together_these_tests_reach_every_code() -> None:
    reached = {code for code, _ in SURVEYS} | {
        *(Code.APPROVAL_REQUIRED, Code.DEPENDENCY, Code.RETRY_BACKOFF, Code.START_TIME, Code.NOT_WAITING),
        *(Code.QUOTA_USER, Code.QUOTA_GLOBAL, Code.QUOTA_TEAM, Code.QUOTA, Code.HELD_AFTER_RESTORE),
        *(Code.OVER_SHARE, Code.SETTING_UNREADABLE),
    }
    assert reached | OF_MACHINES == set(Code) == set(REASONS)


def test_the_contracts_codes_all_exist() -> None:
    assert {code.value for code in Code} >= {
        *("NO_WORKERS", "LABELS_MATCH_NONE", "GPU_COUNT_TOO_LARGE", "VRAM_TOO_SMALL"),
        *("WRONG_ACCELERATOR", "TRAINER_MISSING", "ALL_MATCHING_BUSY", "ALL_MATCHING_OFFLINE"),
        *("ALL_MATCHING_DRAINING", "BEHIND_OTHERS", "RETRY_BACKOFF", "APPROVAL_REQUIRED"),
        *("DEPENDENCY", "QUOTA_USER", "QUOTA_GLOBAL", "LOCAL_GPU_BUSY", "LOCAL_NO_GPU"),
    }
    assert {kind.value for kind in Kind} == {"wait", "change", "admin"}


@pytest.mark.parametrize("job", [a_job(), a_job(hold=Hold.BACKOFF, not_before=NOW + 60)])
@pytest.mark.parametrize("limit", [None, Ceiling(Code.QUOTA_USER, {})])
def test_what_can_never_be_is_said_at_once(job: Job, limit: Ceiling | None) -> None:
    fleet = asked(Requirements(gpus=16), a_worker(gpus=8))
    explanation = explain(job, fleet, limit=limit, ahead=0, now=NOW)
    assert explanation.code is Code.GPU_COUNT_TOO_LARGE
    assert explanation.sentence == "too few GPUs: the job needs 16, the largest worker has 8"
    assert explanation.fixes == (
        "Adjust --num_processes in the training config: the largest worker allows 8.",
    )


def test_a_backoff_is_told_before_a_limit_and_a_limit_before_a_busy_fleet() -> None:
    fleet = asked(REMOTE, a_worker(), held=BUSY)
    held_back = a_job(hold=Hold.BACKOFF, not_before=NOW + 9)
    assert code_of(held_back, fleet, limit=Ceiling(Code.QUOTA_USER, {})) is Code.RETRY_BACKOFF
    assert code_of(a_job(), fleet, limit=Ceiling(Code.QUOTA_USER, {})) is Code.QUOTA_USER
    assert code_of(a_job(), fleet) is Code.ALL_MATCHING_BUSY


def test_after_a_restore_the_hold_is_named_with_its_end_and_before_what_else_keeps_a_job_waiting() -> None:
    fleet = asked(REMOTE, a_worker())
    for job in (a_job(), a_job(hold=Hold.BACKOFF, not_before=NOW + 9)):
        explanation = explain(
            job, fleet, limit=Ceiling(Code.QUOTA_USER, {}), ahead=0, now=NOW, held_until=NOW + 20
        )
        assert explanation.code is Code.HELD_AFTER_RESTORE
        assert explanation.params == {"wait_s": 20.0, "until": NOW + 20}
        assert explanation.sentence.startswith("the server was restored from a backup: nothing is placed for")
        assert "another 20 s" in explanation.sentence
    over = explain(a_job(), fleet, limit=None, ahead=0, now=NOW + 20, held_until=NOW + 20)
    assert over.code is Code.BEHIND_OTHERS
    never = explain(
        a_job(),
        asked(Requirements(gpus=16), a_worker()),
        limit=None,
        ahead=0,
        now=NOW,
        held_until=NOW + 20,
    )
    assert never.code is Code.GPU_COUNT_TOO_LARGE, "waiting would not help"


def test_a_wait_counts_down_and_never_below_zero() -> None:
    fleet = asked(REMOTE, a_worker())
    for not_before, wait_s in ((NOW + 9, 9.0), (NOW - 9, 0.0), (None, 0.0)):
        job = a_job(hold=Hold.BACKOFF, not_before=not_before)
        explanation = explain(job, fleet, limit=None, ahead=0, now=NOW)
        assert explanation.params == {"wait_s": wait_s}


def test_the_largest_worker_is_one_in_the_place_asked_for() -> None:
    fleet = asked(Requirements(target=Target.WORKER, gpus=4), a_worker(gpus=2), a_worker(local=True, gpus=8))
    assert fleet.code is Code.GPU_COUNT_TOO_LARGE
    assert fleet.params["largest"] == 2


def test_the_memory_to_ask_for_is_what_enough_gpus_of_one_worker_have() -> None:
    one_big = a_worker("w_1", gpus=(a_gpu(0, vram_gb=80),))
    two_small = a_worker("w_2", gpus=(a_gpu(0, vram_gb=48), a_gpu(1, vram_gb=24)))
    fleet = asked(Requirements(gpus=2, min_vram_gb=40), one_big, two_small)
    assert fleet.code is Code.VRAM_TOO_SMALL
    assert fleet.fixes == ("Ask for at most 24 GB of GPU memory.",)
    assert asked(Requirements(gpus=2, min_vram_gb=24), one_big, two_small).code is Code.BEHIND_OTHERS


def test_labels_are_named_one_by_one_or_as_a_combination() -> None:
    wanted = (("team", "nlp"), ("zone", "eu"))
    neither = asked(Requirements(labels=wanted), a_worker(labels={"team": "nlp"}))
    assert neither.params["unmatched"] == ["zone"]
    assert sentence(neither.code, neither.params) == "no worker has the required label zone=eu"
    apart = asked(
        Requirements(labels=wanted), a_worker(labels={"team": "nlp"}), a_worker(labels={"zone": "eu"})
    )
    assert apart.params["unmatched"] == []
    assert sentence(apart.code, apart.params).endswith("combination of labels: team=nlp, zone=eu")
    other = asked(
        Requirements(labels=wanted),
        a_worker("w_1", labels={"team": "nlp", "zone": "us"}),
        a_worker("w_2", labels={"zone": "eu"}),
    )
    assert sentence(other.code, other.params).endswith(
        f"team=nlp, zone=eu ({other.workers[0].name}: zone=us)"
    )


def test_a_release_that_nobody_has_is_named_with_those_that_there_are() -> None:
    """In the sentence, so that page, command line and API say it alike; a few workers of many."""
    requires = Requirements(labels=(("trainer", ">=4.3"), ("pool", "night*")))
    has = {"trainer": "3.1.6", "pool": "night-1"}
    one = asked(requires, a_worker("w_1", name="gpu-1", labels=has))
    said = "no worker has the required label trainer>=4.3 (gpu-1: SimpleTuner 3.1.6)"
    assert sentence(one.code, one.params) == said
    assert one.workers[0].has_labels == ("SimpleTuner 3.1.6",)
    many = asked(requires, *(a_worker(f"w_{n}", name=f"gpu-{n}", labels=has) for n in range(9)))
    assert many.params["have"] == [*(f"gpu-{n}: SimpleTuner 3.1.6" for n in range(3)), "…"]
    assert all(verdict.has_labels for verdict in many.workers)
    odd = asked(requires, a_worker("w_1", name="gpu-1", labels={"Trainer": "mine", "pool": "day"}))
    assert odd.params["have"] == ["gpu-1: trainer=mine pool=day"]
    too_small = replace(requires, gpus=2)
    fits = a_worker("w_2", name="gpu-2", gpus=2, labels={"pool": "night-1"})
    closest = asked(too_small, a_worker("w_1", name="gpu-1", labels=has), fits)
    assert closest.params["have"] == [], "one that fails before its labels are asked for is not the closest"


def test_the_funnel_narrows_step_by_step_in_the_order_of_the_rules() -> None:
    fleet = survey(
        Requirements(gpus=2, trainer="command"),
        [
            (a_worker("w_small"), FREE),
            (a_worker("w_plain", gpus=2), FREE),
            (a_worker("w_off", gpus=2, trainers=("command",), connection=Connection.OFFLINE), FREE),
            (a_worker("w_good", gpus=2, trainers=("command",)), FREE),
        ],
    )
    assert [(step.step, step.left) for step in fleet.funnel] == [
        ("workers", 4),
        ("too_few_gpus", 3),
        ("trainer_missing", 2),
        ("offline", 1),
    ]
    assert [(verdict.id, verdict.fails) for verdict in fleet.workers] == [
        ("w_off", ("offline",)),
        ("w_plain", ("trainer_missing",)),
        ("w_small", ("too_few_gpus",)),
    ]
    assert fleet.possible == 2


def test_a_large_fleet_is_told_in_part() -> None:
    fleet = asked(Requirements(gpus=9), *(a_worker(f"w_{n}") for n in range(200)))
    assert len(fleet.workers) == MAX_WORKERS_TOLD
    assert fleet.funnel[0].left == 200


fleets = st.lists(
    st.builds(
        lambda n, gpus, vram, local, admin, connection, live: (
            a_worker(
                f"w_{n}",
                gpus=tuple(a_gpu(i, vram_gb=vram) for i in range(gpus)),
                local=local,
                admin=admin,
                connection=connection,
            ),
            Occupancy(live),
        ),
        st.integers(0, 9),
        st.integers(0, 4),
        st.sampled_from([8.0, 80.0]),
        st.booleans(),
        st.sampled_from(AdminState),
        st.sampled_from(Connection),
        st.integers(0, 1),
    ),
    max_size=6,
)
options = st.builds(
    Requirements,
    target=st.sampled_from(Target),
    gpus=st.integers(0, 5),
    min_vram_gb=st.sampled_from([0.0, 24.0]),
    accelerator=st.sampled_from(["", "cuda", "rocm"]),
    labels=st.sampled_from([(), (("team", "nlp"),)]),
)


@settings(max_examples=200)
@given(options, fleets)
def test_a_survey_agrees_with_the_matcher_worker_by_worker(
    requires: Requirements, fleet: list[tuple[Worker, Occupancy]]
) -> None:
    surveyed = survey(requires, fleet)
    own_is_starting = any(worker.local and not has_joined(worker) for worker, _ in fleet)
    fleet = [(worker, held) for worker, held in fleet if has_joined(worker)]
    could_ever = sum(why_never(worker, requires) is None for worker, _ in fleet)
    could_now = sum(why_not_now(worker, held, requires) is None for worker, held in fleet)
    assert surveyed.possible == could_ever
    assert surveyed.funnel[0].left == len(fleet)
    assert surveyed.funnel[-1].left == could_now
    if could_ever == 0 and own_is_starting and requires.target is Target.LOCAL:
        assert surveyed.code is Code.ALL_MATCHING_OFFLINE
    else:
        assert (surveyed.code in IMPOSSIBLE) is (could_ever == 0)
    assert (surveyed.code is Code.BEHIND_OTHERS) is (could_now > 0)
    assert sentence(surveyed.code, surveyed.params)


def test_every_state_and_hold_has_a_sentence() -> None:
    fleet = asked(REMOTE, a_worker())
    for state, hold in product(JobState, Hold):
        job = a_job(state=state, hold=hold, depends_on=("j_0", "j_9"))
        assert explain(job, fleet, limit=None, ahead=0, now=NOW).sentence


@pytest.mark.parametrize(
    ("hold", "states", "ended", "depends_on"),
    [
        (Hold.DEPENDENCY, ("running", "running"), None, ["j_0", "j_9"]),
        (Hold.DEPENDENCY, ("completed", "running"), None, ["j_9"]),
        (Hold.DEPENDENCY, ("completed", "completed"), ["j_0", "j_9"], ["j_0", "j_9"]),
        (Hold.DEPENDENCY, ("running", "failed"), ["j_9"], ["j_0", "j_9"]),
        (Hold.APPROVAL, ("cancelled", "running"), ["j_0"], ["j_0", "j_9"]),
    ],
)
def test_a_job_that_is_yet_to_be_told_of_an_end_waits_for_nothing_else(
    hold: Hold, states: tuple[str, str], ended: list[str] | None, depends_on: list[str]
) -> None:
    job = a_job(state=JobState.BLOCKED, hold=hold, depends_on=("j_0", "j_9"))
    named = [a_job(id, state=JobState(state)) for id, state in zip(job.depends_on, states, strict=True)]
    over = [one for one in named if one.terminal]
    waits = explain(job, asked(REMOTE), limit=None, ahead=0, now=NOW, ended=over)
    assert (waits.code, waits.params.get("ended"), waits.params["depends_on"]) == (
        Code.DEPENDENCY,
        ended,
        depends_on,
    )
    is_about_to_hear = (
        f"what it waited for has ended ({', '.join(ended)}): it is told in a moment" if ended else ""
    )
    assert waits.sentence == (is_about_to_hear or f"waits for {', '.join(depends_on)}")


def test_without_a_remote_worker_an_automatic_job_is_told_that_there_is_none() -> None:
    own_machine = a_worker(local=True, gpus=0)
    surveyed = survey(Requirements(target=Target.AUTO, gpus=1, trainer="command"), [(own_machine, FREE)])
    assert surveyed.code is Code.NO_WORKERS


def test_gpus_that_a_worker_leaves_unused_are_told_with_what_would_use_them() -> None:
    worker = a_worker(gpus=8, max_jobs=1)
    held = Occupancy(1, frozenset(gpu.uuid for gpu in worker.gpus[:2]))
    assert gpus_left_idle(worker, held) == 6
    surveyed = survey(Requirements(gpus=4), [(worker, held)])
    assert surveyed.code is Code.ALL_MATCHING_BUSY
    assert surveyed.fixes == (
        "w_1 has unused GPUs (6), but its limit of jobs at a time is 1: start it with --max-jobs auto.",
    )
    assert survey(Requirements(gpus=7), [(worker, held)]).fixes == (), "six would not do"


@pytest.mark.parametrize(
    ("facts", "live"),
    [({"max_jobs": 2}, 1), ({"max_jobs": 8}, 8), ({"connection": Connection.OFFLINE}, 1), ({"gpus": 1}, 1)],
)
def test_a_worker_that_takes_more_or_cannot_leaves_none_unused(facts: dict[str, Any], live: int) -> None:
    assert gpus_left_idle(a_worker(**{"gpus": 8, "max_jobs": 1, **facts}), Occupancy(live)) == 0
