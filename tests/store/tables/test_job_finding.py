"""Jobs that fit a filter, in any order and from any place, and how many there are: the same in every store."""

from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.finding import JobOrder, JobPlace, JobSort, read_order, sort_value
from simpletuner_fleet.core.jobs.job import Hold, Job, JobState, Requirements, Results
from simpletuner_fleet.core.jobs.states import TERMINAL
from simpletuner_fleet.core.placement.ordering import class_id
from simpletuner_fleet.ports import JobFilter, Store, Tx, View
from tests.store.samples import BUNDLE, attempt, job

LIVE = sorted(frozenset(JobState) - TERMINAL)
DEMO = Requirements(trainer="demo", labels=(("gpu", "a100"), ("rack", 'r"1')), owner="t_anna")
DECOY = Requirements(secrets=("gpu", "a100"), accelerator='"trainer":"demo"', owner="t_anna")


def asking(number: int, requires: Requirements, **given: Any) -> Job:
    return job(number, requires=requires, class_id=class_id(requires), **given)


JOBS = (
    asking(1, DEMO, name="beta", tags=("cats", "paper")),
    asking(2, DECOY, name="Alpha", rank=5.0, state=JobState.BLOCKED, hold=Hold.APPROVAL),
    job(3, started_at=50.0, finished_at=60.0, state=JobState.FAILED, attempt_id="a_1", tags=("cat",)),
    job(4, started_at=40.0, state=JobState.RUNNING, priority=7, owner="t_ben", note="keep\nthis"),
    job(5, started_at=30.0, finished_at=70.0, state=JobState.COMPLETED, results=Results.MISSING, reason="x"),
    asking(6, DEMO, config_name="äpfel", rank=-1.0, attempts=3, tags=("cats", "हिन्दी")),
    job(7, rank=2.0, refused_by=("w_1 i_1",), name="ω"),
    job(8, finished_at=60.0, state=JobState.CANCELLED),
)


@pytest.fixture
async def filled(store: Store) -> Store:
    def step(tx: Tx) -> None:
        for one in JOBS:
            tx.add_job(one, BUNDLE)
        tx.name_datasets("j_1", ["pets", "cars"])
        tx.name_datasets("j_6", ["pets"])
        tx.add_attempt(attempt(1, job_id="j_3", failure_class="oom", ended_at=60.0, state="ended"))

    await store.write(step)
    return store


async def fitting(store: Store, **where: Any) -> list[int]:
    asked = JobFilter(**where)
    jobs = await store.read(lambda view: view.jobs_sorted(asked, JobOrder(), None, 99))
    counts = await store.read(lambda view: view.jobs_matching(asked))
    assert sum(counts.values()) == len(jobs)
    assert all(counts[one.state] for one in jobs)
    return sorted(one.seq for one in jobs)


async def counted(store: Store, where: JobFilter, most_ended: int | None) -> dict[str, int]:
    return await store.read(lambda view: view.jobs_matching(where, most_ended))


async def test_no_more_ended_jobs_are_counted_than_asked_and_all_that_have_not_ended(filled: Store) -> None:
    for where in (JobFilter(owner="t_anna"), JobFilter(config_name="sdxl"), JobFilter(text="j_")):
        whole, some = await counted(filled, where, None), await counted(filled, where, 2)
        assert sum(whole[state] for state in TERMINAL & whole.keys()) == 3
        assert sum(some[state] for state in TERMINAL & some.keys()) == 2
        assert all(some.get(state, 0) <= whole[state] for state in whole)
        assert [some.get(state) for state in LIVE] == [whole.get(state) for state in LIVE]
        assert await counted(filled, where, 99) == whole
    assert await counted(filled, JobFilter(), 1) == await counted(filled, JobFilter(), None), (
        "it is kept, and free"
    )
    failed = JobFilter(text="j_", states=(JobState.FAILED, JobState.BLOCKED))
    assert await counted(filled, failed, 5) == {"failed": 1, "blocked": 1}


async def test_jobs_are_found_by_what_they_ask_for_and_what_is_written_on_them(filled: Store) -> None:
    assert await fitting(filled, trainer="demo") == [1, 6]
    assert await fitting(filled, labels=(("gpu", "a100"),)) == [1, 6]
    assert await fitting(filled, labels=(("gpu", "a100"), ("rack", 'r"1'))) == [1, 6]
    assert await fitting(filled, labels=(("gpu", "a"),)) == []
    assert await fitting(filled, dataset="pets") == [1, 6]
    assert await fitting(filled, dataset="cars", tags=("cats",)) == [1]
    assert await fitting(filled, dataset="none") == []
    assert await fitting(filled, tags=("cats",)) == [1, 6]
    assert await fitting(filled, tags=("cat",)) == [3]
    assert await fitting(filled, tags=("cats", "हिन्दी")) == [6]
    assert await fitting(filled, owner="t_ben") == [4]
    assert await fitting(filled, results=("missing",)) == [5]
    assert await fitting(filled, hold="approval") == [2]
    named = {"ids": ("j_1", "j_2", "j_4", "j_99")}
    assert await fitting(filled, **named) == [1, 2, 4]
    assert await fitting(filled, **named, owner="t_ben", states=("queued", "running")) == [4]
    assert await fitting(filled, ids=()) == []


async def test_jobs_are_found_by_why_and_when_they_ended(filled: Store) -> None:
    assert await fitting(filled, reason="oom") == [3]
    assert await fitting(filled, reason="x") == [5]
    assert await fitting(filled, finished_since=61.0) == [5]
    assert await fitting(filled, finished_until=70.0) == [3, 8]
    assert await fitting(filled, created_since=103.0, created_until=105.0) == [3, 4]
    assert await fitting(filled, states=("failed", "running"), created_since=104.0) == [4]
    assert await fitting(filled, states=("failed", "running")) == [3, 4]
    assert await fitting(filled) == [1, 2, 3, 4, 5, 6, 7, 8]


def _two_more(where: JobFilter, order: JobOrder, place: JobPlace | None, view: View) -> list[Job]:
    return view.jobs_sorted(where, order, place, 2)


@pytest.mark.parametrize("text", [f"{minus}{sort}" for sort in JobSort for minus in ("", "-")])
@pytest.mark.parametrize(
    "states", [(), ("queued", "blocked", "running"), ("failed", "completed", "cancelled")]
)
async def test_pages_in_any_order_go_on_where_the_last_one_ended(
    filled: Store, text: str, states: tuple[str, ...]
) -> None:
    order = read_order(text)
    where = JobFilter(states=states)
    fits = [one for one in JOBS if not states or one.state in states]
    expected = sorted(fits, key=lambda one: (sort_value(one, order.sort), one.seq), reverse=order.descending)
    seen: list[Job] = []
    place: JobPlace | None = None
    while True:
        page = await filled.read(partial(_two_more, where, order, place))
        if not page:
            break
        seen += page
        place = JobPlace(order.text, sort_value(page[-1], order.sort), page[-1].seq, 0)
    assert [one.seq for one in seen] == [one.seq for one in expected]


async def test_waiting_jobs_are_grouped_by_all_that_their_reason_depends_on(filled: Store) -> None:
    groups = await filled.read(lambda view: view.waiting_groups(JobFilter(), 99))
    assert [(group.jobs, group.first, group.oldest_at) for group in groups] == [
        (2, "j_1", 101.0),
        (1, "j_2", 102.0),
        (1, "j_7", 107.0),
    ]
    assert await fitting(filled, waiting_groups=(groups[0].key,)) == [1, 6]
    assert await fitting(filled, waiting_groups=(groups[2].key, groups[1].key)) == [2, 7]
    assert await fitting(filled, waiting_groups=()) == []
    assert [one.first for one in await filled.read(lambda view: view.waiting_groups(JobFilter(), 1))] == [
        "j_1"
    ]
    mine = JobFilter(tags=("paper",))
    assert [one.jobs for one in await filled.read(lambda view: view.waiting_groups(mine, 9))] == [1]


async def test_tags_and_notes_are_kept_as_they_were_written(filled: Store) -> None:
    known = await filled.read(lambda view: view.job("j_4"))
    assert known is not None
    assert (known.note, known.tags) == ("keep\nthis", ())
    await filled.write(lambda tx: tx.save_job(replace(known, tags=("new",), note="b")))
    assert await fitting(filled, tags=("new",)) == [4]
    saved = await filled.read(lambda view: view.job("j_4"))
    assert saved is not None
    assert saved.note == "b"
