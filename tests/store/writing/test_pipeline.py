"""Who is answered when: steps run ahead of the disk, answers never do."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.core.jobs.job import Job, JobState
from simpletuner_fleet.store.sqlite import SqliteStore
from tests.store.outsider import Rig, a_while, sqlite_rig, until
from tests.store.samples import BUNDLE, job, worker
from tests.store.story_steps import Step, adding, change_worker, give_up, noting, prepare
from tests.store.test_durability import refusing_to_sync


async def test_nobody_is_answered_before_the_commit_that_holds_his_step(rig: Rig) -> None:
    await rig.store.write(prepare)
    ran: list[None] = []
    with rig.commits_held_up():
        writing = asyncio.create_task(rig.store.write(noting(adding(2), ran)))
        await until(lambda: ran)
        await a_while()
        assert not writing.done()
        assert await rig.store.read(lambda view: view.job("j_2")) is None
    await writing
    assert await rig.store.read(lambda view: view.job("j_2")) == job(2)


async def test_a_step_that_only_looks_is_answered_without_a_commit(rig: Rig) -> None:
    await rig.store.write(prepare)
    with rig.commits_held_up():
        async with asyncio.timeout(10):
            assert await rig.store.write(lambda tx: tx.job("j_1")) == job(1)


async def test_a_step_that_only_looks_waits_for_the_commit_of_what_it_has_seen(rig: Rig) -> None:
    await rig.store.write(prepare)
    ran: list[Job | None] = []
    with rig.commits_held_up():
        writing = asyncio.create_task(rig.store.write(adding(2)))
        await a_while()
        looking = asyncio.create_task(rig.store.write(noting(lambda tx: tx.job("j_2"), ran)))
        await until(lambda: ran)
        await a_while()
        assert not writing.done()
        assert not looking.done()
        assert ran == [job(2)]
    await writing
    assert await looking == job(2)


async def test_one_who_looks_after_a_write_of_the_same_turn_waits_for_it_too(rig: Rig) -> None:
    await rig.store.write(prepare)
    with rig.commits_held_up():
        both = [
            asyncio.create_task(rig.store.write(adding(2))),
            asyncio.create_task(rig.store.write(lambda tx: tx.job("j_2") is not None)),
        ]
        await a_while()
        assert not any(one.done() for one in both)
    assert await asyncio.gather(*both) == [None, True]


async def test_steps_go_on_while_a_commit_is_under_way_and_share_the_next_one(rig: Rig) -> None:
    await rig.store.write(prepare)
    ran: list[None] = []
    with rig.commits_held_up():
        writing = [asyncio.create_task(rig.store.write(adding(2)))]
        await a_while()
        writing += [asyncio.create_task(rig.store.write(noting(adding(n), ran))) for n in range(3, 200)]
        await until(lambda: len(ran) == 197)
    await asyncio.gather(*writing)
    assert await rig.store.read(lambda view: view.job_counts()) == {"queued": 199}
    assert await rig.memory_equals_database()


async def test_when_a_commit_fails_everything_that_stood_on_it_is_lost_and_told_so(rig: Rig) -> None:
    await rig.store.write(prepare)
    known_resets = len(rig.observer.reset_in)
    ran: list[object] = []
    with rig.commits_held_up():
        writing: list[asyncio.Task[object]] = [asyncio.create_task(rig.store.write(change_worker))]
        await a_while()
        later: list[Step[object]] = [adding(2), lambda tx: tx.job("j_2"), give_up]
        writing += [asyncio.create_task(rig.store.write(step)) for step in later]
        writing.append(asyncio.create_task(rig.store.write(noting(adding(3), ran))))
        await until(lambda: ran)
        rig.spoil_workers()
    answers = await asyncio.gather(*writing, return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreUnavailable] * 5
    assert "changed by another program" in str(answers[0])
    assert len(rig.observer.reset_in) > known_resets
    assert rig.observer.rows() == [{}, {}, {}]
    assert await rig.store.write(lambda tx: (tx.job("j_2"), tx.job("j_3"))) == (None, None)
    assert list(rig.observer.jobs) == ["j_1"]
    assert rig.observer.workers["w_1"].version == 10
    assert await rig.memory_equals_database()
    await rig.store.write(change_worker)
    await rig.store.write(adding(2))
    assert await rig.memory_equals_database()
    assert await rig.store.read(lambda view: view.job_counts()) == {"queued": 2}


async def test_a_closed_store_takes_no_step(rig: Rig) -> None:
    await rig.store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await rig.store.write(adding(1))


def test_one_event_loop_finishes_what_another_has_left(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "fleet.db")

    async def leave_midway() -> None:
        leaving = [asyncio.create_task(store.write(adding(number))) for number in (1, 2)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for one in leaving:
            one.cancel()

    async def go_on() -> list[bool]:
        await store.write(adding(3))
        exist = await store.read(lambda view: [view.job(f"j_{number}") is not None for number in (1, 2, 3)])
        await store.close()
        return exist

    asyncio.run(leave_midway())
    assert asyncio.run(go_on()) == [True, True, True]


async def test_a_row_that_cannot_be_written_down_leaves_nobody_waiting(rig: Rig) -> None:
    await rig.store.write(prepare)
    spoiled = replace(worker(1), retired=("\ud800",))
    async with asyncio.timeout(10):
        answers = await asyncio.gather(
            rig.store.write(adding(2)),
            rig.store.write(lambda tx: tx.save_worker(spoiled)),
            return_exceptions=True,
        )
    assert [type(answer) for answer in answers] == [StoreUnavailable] * 2
    assert await rig.store.write(lambda tx: tx.worker("w_1")) == worker(1)
    assert await rig.memory_equals_database()


async def test_a_disk_that_cannot_be_read_is_told_as_such(tmp_path: Path) -> None:
    async with sqlite_rig(tmp_path / "fleet.db") as rig:
        await rig.store.write(prepare)
        await rig.restart()
        await rig.store.write(lambda tx: None)
        with refusing_to_sync(tmp_path / "fleet.db"), pytest.raises(StoreUnavailable):
            await rig.store.write(lambda tx: tx.job_bundle("j_1"))


async def test_closing_finishes_what_was_handed_in(rig: Rig) -> None:
    await rig.store.write(lambda tx: tx.add_job(job(1, state=JobState.COMPLETED), BUNDLE))
    steps: list[Step[object]] = [
        adding(2),
        lambda tx: tx.put_setting("k", "v"),
        adding(3),
        lambda tx: tx.job("j_1"),
    ]
    writing = [asyncio.create_task(rig.store.write(step)) for step in steps]
    await asyncio.sleep(0)
    await rig.restart()
    assert await asyncio.gather(*writing) == [None, None, None, job(1, state=JobState.COMPLETED)]
    assert await rig.store.read(lambda view: (view.setting("k"), view.job("j_3"))) == ("v", job(3))


async def test_an_observer_that_comes_midway_loses_nobodys_change(rig: Rig) -> None:
    await rig.store.write(prepare)
    with rig.commits_held_up():
        writing = [asyncio.create_task(rig.store.write(adding(2)))]
        await a_while()
        writing.append(asyncio.create_task(rig.store.write(adding(3))))
        await a_while()
        rig.store.observe(rig.observer)
    await asyncio.gather(*writing)
    assert await rig.store.read(lambda view: view.job("j_3")) == job(3)
    assert await rig.memory_equals_database()
