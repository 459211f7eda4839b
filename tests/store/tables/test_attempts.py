import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.errors import IllegalTransition
from simpletuner_fleet.core.jobs.job import (
    ATTEMPT_TRANSITIONS,
    Attempt,
    AttemptState,
    EndReason,
    Outcome,
    Stopping,
)
from simpletuner_fleet.core.placement.usage import Charge
from simpletuner_fleet.ports import ConcurrentChange, Store, Tx
from simpletuner_fleet.store.sql import jobs
from tests.store.samples import BUNDLE, attempt, job

EVERY_FIELD = attempt(
    3,
    state=AttemptState.ENDED,
    gpus=("GPU-1",),
    gpu_indices=(0, 3),
    upload_token_hash="hash",
    accepted_at=1.25,
    started_at=2.25,
    ended_at=3.25,
    outcome=Outcome.FAILED,
    exit_code=-1,
    exit_signal=9,
    error="killed",
    last_lines="one\ntwo",
    incarnation="i_1",
    resumed_from_step=500,
    resumed_manifest="m_1",
    checkpoint_step=1000,
    failure_class="out_of_memory",
    failure_evidence="CUDA out of memory",
    resume_below=60,
    stopping=Stopping(reason=EndReason.DRAINED, asked_at=3.0, grace_s=30.0, save_s=300.0, had_step=900),
    reason="drained",
    gpu_kind="NVIDIA H100",
    hourly_micros=2**52,
)
ENDED = AttemptState.ENDED


@pytest.fixture(autouse=True)
async def _two_jobs(store: Store) -> None:
    def step(tx: Tx) -> None:
        tx.add_job(job(1), BUNDLE)
        tx.add_job(job(2), BUNDLE)

    await store.write(step)


async def add(store: Store, *attempts: Attempt) -> None:
    def step(tx: Tx) -> None:
        for each in attempts:
            tx.add_attempt(each)

    await store.write(step)


async def save(store: Store, changed: Attempt) -> None:
    await store.write(lambda tx: tx.save_attempt(changed))


def ids(attempts: list[Attempt]) -> list[str]:
    return [each.id for each in attempts]


async def test_an_attempt_comes_back_as_it_was_stored(store: Store) -> None:
    await add(store, EVERY_FIELD)
    assert await store.read(lambda view: view.attempt("a_3")) == EVERY_FIELD
    assert await store.read(lambda view: view.attempt("a_9")) is None


async def test_every_changing_field_of_an_attempt_is_saved(store: Store) -> None:
    await add(store, attempt(3, gpu_kind=EVERY_FIELD.gpu_kind, hourly_micros=EVERY_FIELD.hourly_micros))
    await store.write(lambda tx: tx.save_attempt(EVERY_FIELD))
    assert await store.read(lambda view: view.attempt("a_3")) == EVERY_FIELD


async def test_each_changing_field_of_an_attempt_is_saved_when_nothing_else_changes(store: Store) -> None:
    known = attempt(3, gpu_kind=EVERY_FIELD.gpu_kind, hourly_micros=EVERY_FIELD.hourly_micros)
    await add(store, known)
    changing = [
        name for name in Attempt.__struct_fields__ if getattr(EVERY_FIELD, name) != getattr(known, name)
    ]
    for name in sorted(changing, key=lambda name: name == "state"):  # what has ended is no longer in memory
        known = replace(known, **{name: getattr(EVERY_FIELD, name)})
        await save(store, known)
        assert await store.read(lambda view: view.attempt("a_3")) == known, name
    assert known == EVERY_FIELD


async def test_a_job_has_one_live_attempt_at_most(store: Store) -> None:
    await add(store, attempt(1))
    with pytest.raises(ConcurrentChange):
        await add(store, attempt(2))
    await store.write(lambda tx: tx.save_attempt(attempt(1, state=ENDED)))
    await add(store, attempt(2))


async def test_an_ended_attempt_lives_again_only_if_no_other_does(store: Store) -> None:
    await add(store, attempt(1, state=ENDED))
    await store.write(lambda tx: tx.save_attempt(attempt(1, state=AttemptState.RUNNING)))
    await store.write(lambda tx: tx.save_attempt(attempt(1, state=ENDED)))
    await add(store, attempt(2))
    with pytest.raises(ConcurrentChange):
        await store.write(lambda tx: tx.save_attempt(attempt(1, state=AttemptState.RUNNING)))


LEGAL = {(state, after) for (state, _), after in ATTEMPT_TRANSITIONS.items()} | {(s, s) for s in AttemptState}


@pytest.mark.parametrize("before", AttemptState)
@pytest.mark.parametrize("after", AttemptState)
async def test_every_edge_of_the_machine_is_taken_and_no_other(
    store: Store, before: AttemptState, after: AttemptState
) -> None:
    stored = attempt(1, state=before)
    changed = replace(stored, state=after)
    await add(store, stored)
    if (before, after) in LEGAL:
        await store.write(lambda tx: tx.save_attempt(changed))
    else:
        with pytest.raises(IllegalTransition):
            await store.write(lambda tx: tx.save_attempt(changed))
    kept = await store.read(lambda view: view.attempt(stored.id))
    assert kept is not None
    assert kept.state is (after if (before, after) in LEGAL else before)


async def test_an_attempt_is_saved_only_under_its_own_epoch(store: Store) -> None:
    await add(store, attempt(1))
    with pytest.raises(ConcurrentChange):
        await store.write(lambda tx: tx.save_attempt(attempt(1, epoch=2, state=ENDED)))
    with pytest.raises(ConcurrentChange):
        await store.write(lambda tx: tx.save_attempt(attempt(9)))
    assert await store.read(lambda view: view.attempt("a_1")) == attempt(1)


async def test_an_attempt_is_added_once_and_only_to_a_job_that_exists(store: Store) -> None:
    await add(store, attempt(1, state=ENDED))
    for refused in (
        attempt(1, epoch=5, state=ENDED),
        attempt(2, epoch=1, state=ENDED),
        attempt(3, job_id="j_none"),
    ):
        with pytest.raises(ConcurrentChange):
            await add(store, refused)


async def test_attempts_are_found_by_epoch_and_by_upload_token(store: Store) -> None:
    first = attempt(1, state=ENDED, upload_token_hash="one")
    second = attempt(2, upload_token_hash="two")
    await add(store, first, second, attempt(3, job_id="j_2"))
    assert await store.read(lambda view: view.attempt_by_epoch("j_1", 2)) == second
    assert await store.read(lambda view: view.attempt_by_epoch("j_2", 2)) is None
    assert await store.read(lambda view: view.attempt_by_upload_token("one")) == first
    assert await store.read(lambda view: view.attempt_by_upload_token("three")) is None
    assert await store.read(lambda view: view.attempt_by_upload_token("")) is None


async def test_attempts_of_a_job_come_oldest_first(store: Store) -> None:
    await add(store, attempt(2, state=ENDED), attempt(1, state=ENDED), attempt(3), attempt(4, job_id="j_2"))
    assert ids(await store.read(lambda view: view.attempts_of_job("j_1"))) == ["a_1", "a_2", "a_3"]


async def test_attempts_since_a_moment_are_those_that_live_or_ended_after_it(store: Store) -> None:
    early, late = attempt(1, state=ENDED, ended_at=100.0), attempt(2, state=ENDED, ended_at=200.0)
    await add(store, early, late, attempt(3))

    async def since(at: float, limit: int = 10) -> list[str]:
        return ids(await store.read(lambda view: view.attempts_since(at, limit)))

    assert await since(0) == ["a_3", "a_2", "a_1"]
    assert await since(100.5) == ["a_3", "a_2"]
    assert await since(1000) == ["a_3"]
    assert await since(0, limit=1) == ["a_3", "a_2"]


async def test_of_many_attempts_those_that_live_and_those_that_ended_last_are_told_however_old_they_are(
    store: Store,
) -> None:
    lives, long = attempt(1), attempt(2, state=ENDED, ended_at=500.0)
    await add(store, lives, long, *(attempt(n, state=ENDED, ended_at=100.0 + n) for n in (3, 4, 5)))
    assert ids(await store.read(lambda view: view.attempts_since(0.0, 2))) == ["a_5", "a_2", "a_1"]


async def test_attempts_of_a_worker_come_newest_first_and_limited(store: Store) -> None:
    await add(store, attempt(1, state=ENDED), attempt(2), attempt(3, job_id="j_2", worker_id="w_2"))
    assert ids(await store.read(lambda view: view.attempts_of_worker("w_1", 10))) == ["a_2", "a_1"]
    assert ids(await store.read(lambda view: view.attempts_of_worker("w_1", 1))) == ["a_2"]


async def test_live_attempts_are_known_by_worker_and_all_together(store: Store) -> None:
    await add(store, attempt(1, state=ENDED), attempt(2), attempt(3, job_id="j_2", worker_id="w_2"))
    assert ids(await store.read(lambda view: view.live_attempts_of_worker("w_1"))) == ["a_2"]
    assert ids(await store.read(lambda view: view.live_attempts())) == ["a_2", "a_3"]
    await store.write(lambda tx: tx.save_attempt(replace(attempt(2), state=ENDED)))
    assert await store.read(lambda view: view.live_attempts_of_worker("w_1")) == []
    assert ids(await store.read(lambda view: view.live_attempts())) == ["a_3"]


async def test_what_ended_attempts_have_cost_is_told_with_whose_it_was(store: Store) -> None:
    owned = job(7, owner="u_ann", team="tm_lab")

    def step(tx: Tx) -> None:
        tx.add_job(owned, BUNDLE)
        for at, (accepted, ended) in enumerate(((10.0, 20.0), (30.0, 50.0), (None, 60.0))):
            tx.add_attempt(
                replace(
                    attempt(at + 1, job_id="j_7"),
                    state=AttemptState.ENDED,
                    accepted_at=accepted,
                    ended_at=ended,
                    gpus=("g1", "g2"),
                    gpu_kind="H100",
                    hourly_micros=None if at else 5_000_000,
                )
            )

    await store.write(step)
    charges = await store.read(lambda view: view.charges_since(20.0))
    assert charges == [
        Charge("u_ann", "tm_lab", 2, 10.0, 20.0, 5_000_000),
        Charge("u_ann", "tm_lab", 2, 30.0, 50.0),
    ]
    assert await store.read(lambda view: view.charges_since(50.5)) == []
    assert await store.read(lambda view: view.stored_bytes_of_team("tm_lab")) == 0


async def test_what_was_used_between_two_moments_is_told_live_or_over(store: Store) -> None:
    owned = job(7, owner="u_ann", team="tm_lab")
    assert await store.read(lambda view: view.any_priced_attempt()) is False

    def step(tx: Tx) -> None:
        tx.add_job(owned, BUNDLE)
        over = replace(attempt(1, job_id="j_7"), state=ENDED, gpus=("g1", "g2"), gpu_kind="H100")
        tx.add_attempt(replace(over, accepted_at=10.0, ended_at=20.0, hourly_micros=5_000_000))
        tx.add_attempt(replace(attempt(2, job_id="j_7"), state=ENDED, accepted_at=None, ended_at=25.0))
        tx.add_attempt(replace(attempt(3, job_id="j_7"), accepted_at=30.0, gpus=("g1",)))

    await store.write(step)
    used = await store.read(lambda view: list(view.attempts_used(0.0, 100.0)))
    assert [(one.begun_at, one.ended_at, one.gpus, one.hourly_micros) for one in used] == [
        (10.0, 20.0, 2, 5_000_000),
        (30.0, None, 1, None),
    ]
    first = used[0]
    assert (first.owner, first.team, first.config_name, first.gpu_kind, first.visibility) == (
        *("u_ann", "tm_lab", owned.config_name, "H100", owned.visibility),
    )
    assert len(await store.read(lambda view: list(view.attempts_used(20.0, 100.0)))) == 1

    async def seconds(since: float) -> float:
        return sum(one.gpu_seconds for one in await store.read(lambda view: view.time_used(since, 100.0)))

    assert [await seconds(since) for since in (0.0, 15.0, 20.0, 60.0)] == [20 + 70, 10 + 70, 70, 40]
    (whose,) = {
        (one.owner, one.team, one.visibility)
        for one in await store.read(lambda view: view.time_used(0.0, 100.0))
    }
    assert whose == ("u_ann", "tm_lab", owned.visibility)
    assert len(await store.read(lambda view: list(view.attempts_used(0.0, 30.0)))) == 1
    assert await store.read(lambda view: view.any_priced_attempt()) is True


async def test_used_attempts_are_read_a_part_at_a_time_and_each_of_them_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where several ended in the same moment, as when a worker is lost, in one part and beyond it."""
    monkeypatch.setattr(jobs, "ROWS_IN_A_PART", 3)

    def step(tx: Tx) -> None:
        for number in range(10):
            tx.add_job(job(100 + number), BUNDLE)
            over = attempt(100 + number, job_id=f"j_{100 + number}", gpus=("g1",))
            ended_at = (5.0, 20.0, 20.0, 20.0, 20.0, 20.0, 30.0, 40.0)[number] if number < 8 else None
            state = AttemptState.ENDED if ended_at else AttemptState.RUNNING
            tx.add_attempt(replace(over, state=state, accepted_at=1.0 + number, ended_at=ended_at))

    await store.write(step)
    used = await store.scan(lambda view: [one.begun_at - 1 for one in view.attempts_used(5.0, 100.0)])
    assert used == [1, 2, 3, 4, 5, 6, 7, 8, 9]
