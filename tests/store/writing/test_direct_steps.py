"""Steps that need the connection: run again with it, in their order, and seen by those behind them."""

import asyncio
from pathlib import Path

import pytest

from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.core.jobs.job import JobState
from simpletuner_fleet.ports import ConfigVersion, IdempotentAnswer, JobFilter, Tx
from tests.store.outsider import Rig, a_while, sqlite_rig, until
from tests.store.samples import BUNDLE, config, event, job
from tests.store.story_steps import Step, adding, change_worker, noting, prepare


async def test_steps_that_wait_for_the_connection_outlive_a_failed_commit_before_them(rig: Rig) -> None:
    await rig.store.write(prepare)
    with rig.commits_held_up():
        lost = asyncio.create_task(rig.store.write(change_worker))
        await a_while()
        waiting = asyncio.create_task(rig.store.write(lambda tx: tx.put_setting("k", "v")))
        await a_while()
        rig.spoil_workers()
    with pytest.raises(StoreUnavailable):
        await lost
    await waiting
    assert await rig.store.read(lambda view: view.setting("k")) == "v"
    assert await rig.memory_equals_database()


async def test_a_step_that_needs_the_connection_is_run_again_and_counts_once(rig: Rig) -> None:
    runs: list[int] = []

    def step(tx: Tx) -> int:
        seq = tx.next_seq()
        tx.add_job(job(seq), BUNDLE)
        tx.append_audit(1.0, [event(target=f"j_{seq}")])
        runs.append(seq)
        tx.put_setting("k", str(seq))
        return seq

    await rig.store.write(lambda tx: None)
    assert await rig.store.write(step) == 1
    assert runs == [1, 1]
    assert await rig.store.write(lambda tx: tx.next_seq()) == 2
    assert await rig.store.read(lambda view: (view.job_counts(), len(view.audit_range(0, 9)))) == (
        {"queued": 1},
        1,
    )
    assert await rig.memory_equals_database()


async def test_a_step_that_waits_for_the_connection_is_not_tried_again_for_everyone_who_comes(
    rig: Rig,
) -> None:
    await rig.store.write(prepare)
    tries: list[None] = []

    def step(tx: Tx) -> None:
        tries.append(None)
        tx.put_setting("k", "v")

    with rig.commits_held_up():
        writing = [asyncio.create_task(rig.store.write(adding(2)))]
        await a_while()
        for each in (step, *map(adding, range(3, 30))):
            writing.append(asyncio.create_task(rig.store.write(each)))
            await asyncio.sleep(0.001)
        assert len(tries) == 1
    await asyncio.gather(*writing)
    assert len(tries) == 3
    assert await rig.store.read(lambda view: view.job_counts()) == {"queued": 29}


async def test_a_step_with_the_connection_sees_what_was_kept_before_and_what_it_wrote_itself(
    rig: Rig,
) -> None:
    def count(tx: Tx) -> list[int]:
        tx.add_job(job(tx.next_seq()), BUNDLE)
        return [one.seq for one in tx.jobs_page(JobFilter(), None, 9)]

    def add(tx: Tx) -> list[int]:
        tx.add_job(job(tx.next_seq()), BUNDLE)
        return []

    steps = [add, count, add, add, count]
    answers = await asyncio.gather(*(rig.store.write(step) for step in steps))
    assert answers == [[], [2, 1], [], [], [5, 4, 3, 2, 1]]
    assert await rig.memory_equals_database()


async def test_the_order_of_steps_is_kept_whether_they_need_the_connection_or_not(rig: Rig) -> None:
    kept: list[int] = []

    def step_of(number: int) -> Step[int]:
        def step(tx: Tx) -> int:
            seq = tx.next_seq()
            if number % 3 == 0:
                tx.put_setting("last", str(number))
            kept.append(number)
            return seq

        return step

    answers = await asyncio.gather(*(rig.store.write(step_of(number)) for number in range(30)))
    assert answers == list(range(1, 31))
    assert kept == list(range(30))


async def test_nothing_older_is_seen_while_a_step_with_the_connection_commits(tmp_path: Path) -> None:
    seen: list[ConfigVersion | None] = []

    def end_job(number: int) -> Step[None]:
        def step(tx: Tx) -> None:
            tx.add_job(job(number, state=JobState.COMPLETED), BUNDLE)
            tx.add_config(config("c", number))

        return step

    async with sqlite_rig(tmp_path / "fleet.db") as rig:
        for number in range(1, 40):
            await asyncio.gather(
                rig.store.write(end_job(number)),
                rig.store.write(noting(lambda tx: tx.config("c"), seen)),
            )
    assert [one.version for one in seen if one] == list(range(1, 40))


async def test_an_answer_on_its_way_to_the_disk_is_remembered(rig: Rig) -> None:
    answer = IdempotentAnswer(key="k", owner="o", request_hash="h", job_id="j_1", at=1.0)
    await rig.store.write(prepare)
    seen: list[IdempotentAnswer | None] = []
    with rig.commits_held_up():
        writing = asyncio.create_task(rig.store.write(lambda tx: tx.remember_answer(answer)))
        await a_while()
        repeated = asyncio.create_task(
            rig.store.write(noting(lambda tx: tx.idempotent_answer("k", "o"), seen))
        )
        await until(lambda: seen)
    await writing
    assert await repeated == answer
    assert await rig.store.write(lambda tx: tx.idempotent_answer("k", "o")) == answer


async def test_whoever_stands_behind_a_step_with_the_connection_runs_while_that_commits(
    tmp_path: Path,
) -> None:
    events: list[str] = []
    async with sqlite_rig(tmp_path / "fleet.db") as rig:
        await rig.store.write(prepare)

        async def first() -> None:
            await rig.store.write(lambda tx: tx.put_setting("k", "v"))
            events.append("the first is answered")

        await asyncio.gather(first(), rig.store.write(lambda tx: events.append("the second runs")))
    assert events == ["the second runs", "the first is answered"]
