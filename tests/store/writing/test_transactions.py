import asyncio
from collections.abc import Callable

import pytest

from simpletuner_fleet.core.audit import ChainCheck
from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.core.jobs.job import JobState
from simpletuner_fleet.ports import ConcurrentChange, IdempotentAnswer, Store, Tx, View
from simpletuner_fleet.store.memory.store import MemoryStore
from tests.store.observing import Recorder
from tests.store.samples import BUNDLE, attempt, config, event, job, token, worker


class ChangedMyMind(Exception):
    pass


def everything(view: View) -> list[object]:
    return [
        view.job("j_1"),
        view.job("j_2"),
        view.job_bundle("j_2"),
        view.queue_page(None, 10),
        view.job_counts(),
        view.dependents_of("j_1", 0, 99),
        view.attempts_of_job("j_1"),
        view.live_attempts(),
        view.workers(),
        view.worker_by_name("gpu-1"),
        view.configs(),
        view.api_tokens(),
        view.idempotent_answer("k", "t_1"),
        view.setting("s"),
        view.audit_range(0, 100),
        view.audit_stats(),
        view.audit_head(),
        view.job_events("j_1", 10),
    ]


def change_everything(tx: Tx) -> None:
    tx.next_seq()
    tx.next_epoch()
    tx.raise_epoch_to(1000)
    tx.add_job(job(2, class_id="c_new", state=JobState.BLOCKED, depends_on=("j_1",)), BUNDLE)
    tx.save_job(job(1, state=JobState.DISPATCHED))
    tx.add_attempt(attempt(1))
    tx.add_worker(worker(2))
    tx.save_worker(worker(1, name="renamed"))
    tx.touch_heartbeats([("w_2", 5.0)])
    tx.delete_worker("w_2")
    tx.add_config(config("new", 1))
    tx.delete_config("old", 1.0)
    tx.add_api_token(token(1))
    tx.remember_answer(IdempotentAnswer(key="k", owner="t_1", request_hash="h", job_id="j_1", at=1.0))
    tx.put_setting("s", "new")
    tx.append_audit(1.0, [event(), event()])


def prepare(tx: Tx) -> None:
    tx.add_job(job(1), BUNDLE)
    tx.add_worker(worker(1))
    tx.add_config(config("old", 1))
    tx.put_setting("s", "old")
    tx.append_audit(0.5, [event()])


def then_fail(step: Callable[[Tx], object]) -> Callable[[Tx], None]:
    def failing(tx: Tx) -> None:
        step(tx)
        raise ChangedMyMind

    return failing


async def test_a_step_that_fails_leaves_nothing_behind(store: Store) -> None:
    await store.write(prepare)
    before = await store.read(everything)
    with pytest.raises(ChangedMyMind):
        await store.write(then_fail(change_everything))
    assert await store.read(everything) == before
    await store.write(change_everything)
    assert all(new != old for new, old in zip(await store.read(everything), before, strict=True))


async def test_a_step_that_fails_among_others_takes_nobody_with_it(store: Store) -> None:
    def add(number: int) -> Callable[[Tx], int]:
        def step(tx: Tx) -> int:
            tx.add_job(job(tx.next_seq(), id=f"j_{number}", class_id=f"c_{number}"), BUNDLE)
            tx.append_audit(1.0, [event(target=f"j_{number}")])
            if number % 3 == 0:
                raise ChangedMyMind
            return number

        return step

    answers = await asyncio.gather(
        *(store.write(add(number)) for number in range(30)), return_exceptions=True
    )
    for number, answer in enumerate(answers):
        assert isinstance(answer, ChangedMyMind) if number % 3 == 0 else answer == number

    def look(view: View) -> tuple[list[str], list[int], list[str]]:
        jobs = view.queue_page(None, 100)
        return (
            sorted(each.id for each in jobs),
            sorted(each.seq for each in jobs),
            [entry.target_id for entry in view.audit_range(0, 100)],
        )

    kept = [f"j_{number}" for number in range(30) if number % 3]
    are_stored, seqs, audited = await store.read(look)
    assert (are_stored, seqs, audited) == (sorted(kept), list(range(1, 21)), kept)


async def test_numbers_never_repeat_even_after_a_failure(store: Store) -> None:
    taken: list[tuple[int, int]] = []

    def take(tx: Tx) -> tuple[int, int]:
        return tx.next_seq(), tx.next_epoch()

    for _ in range(3):
        taken.append(await store.write(take))
        with pytest.raises(ChangedMyMind):
            await store.write(then_fail(take))
    seqs, epochs = zip(*taken, strict=True)
    assert list(seqs) == sorted(set(seqs))
    assert list(epochs) == sorted(set(epochs))


async def test_the_epoch_can_be_raised_but_never_lowered(store: Store) -> None:
    await store.write(lambda tx: tx.raise_epoch_to(500))
    assert await store.write(lambda tx: tx.next_epoch()) == 501
    await store.write(lambda tx: tx.raise_epoch_to(7))
    assert await store.write(lambda tx: tx.next_epoch()) == 502


async def test_a_step_sees_what_it_has_written_itself(store: Store) -> None:
    def step(tx: Tx) -> tuple[bool, bool]:
        tx.add_job(job(1), BUNDLE)
        tx.add_attempt(attempt(1))
        return tx.job("j_1") == job(1), tx.live_attempts_of_worker("w_1") == [attempt(1)]

    assert await store.write(step) == (True, True)


async def test_steps_run_one_at_a_time_in_the_order_they_were_handed_in(store: Store) -> None:
    inside: list[int] = []
    order: list[int] = []

    def step_of(number: int) -> Callable[[Tx], int]:
        def step(tx: Tx) -> int:
            assert not inside
            inside.append(number)
            order.append(number)
            seq = tx.next_seq()
            tx.add_job(job(seq), BUNDLE)
            tx.append_audit(float(number), [event(target=f"j_{seq}")])
            inside.pop()
            return seq

        return step

    async def writer(number: int) -> int:
        seq = await store.write(step_of(number))
        assert await store.read(lambda view: view.job(f"j_{seq}")) is not None
        return seq

    seqs = await asyncio.gather(*(writer(number) for number in range(100)))
    assert order == list(range(100))
    assert list(seqs) == list(range(1, 101))
    check = ChainCheck([])
    check.feed(await store.read(lambda view: view.audit_range(0, 1000)))
    assert (check.finish(), check.checked) == ([], 100)


async def test_a_caller_who_leaves_disturbs_nobody(store: Store) -> None:
    async def leave() -> None:
        writing = asyncio.ensure_future(store.write(lambda tx: tx.put_setting("left", "yes")))
        await asyncio.sleep(0)
        writing.cancel()

    await leave()
    await store.write(lambda tx: tx.put_setting("stayed", "yes"))
    assert await store.read(lambda view: view.setting("stayed")) == "yes"


async def test_an_exception_of_a_look_reaches_its_caller_alone(store: Store) -> None:
    def look(view: View) -> None:
        raise ChangedMyMind

    answers = await asyncio.gather(
        store.read(look), store.read(lambda view: view.job_counts()), return_exceptions=True
    )
    assert isinstance(answers[0], ChangedMyMind)
    assert answers[1] == {}


async def test_stop_iteration_from_a_step_does_not_hang_its_caller(store: Store) -> None:
    def step(tx: Tx) -> None:
        raise StopIteration

    with pytest.raises(RuntimeError):
        await store.write(step)
    await store.write(lambda tx: tx.put_setting("k", "v"))


async def test_a_guard_that_was_swallowed_keeps_nothing_half_done(store: Store) -> None:
    """A step that catches a refusal and goes on is either kept whole or not at all."""

    def step(tx: Tx) -> None:
        tx.put_setting("before", "yes")
        try:
            tx.save_job(job(1))
        except ConcurrentChange:
            tx.put_setting("after", "yes")

    await store.write(step)
    assert await store.read(lambda view: (view.setting("before"), view.setting("after"))) == ("yes", "yes")


async def test_closing_twice_is_harmless(store: Store) -> None:
    await store.close()
    await store.close()


def test_the_memory_store_never_suspends() -> None:
    store = MemoryStore()
    for coroutine in (store.write(prepare), store.read(lambda view: view.job("j_1")), store.close()):
        with pytest.raises(StopIteration):
            coroutine.send(None)


def test_the_memory_store_can_be_told_to_fail_its_commits() -> None:
    observer = Recorder()
    store = MemoryStore()
    store.observe(observer)
    store.fail_next_commits(1)

    async def story() -> None:
        with pytest.raises(StoreUnavailable):
            await store.write(prepare)
        assert observer.jobs == {}
        assert await store.read(lambda view: view.job("j_1")) is None
        await store.write(prepare)
        assert await store.read(lambda view: view.job("j_1")) == job(1)
        assert len(observer.reset_in) == 3
        assert list(observer.jobs) == ["j_1"]

    asyncio.run(story())
