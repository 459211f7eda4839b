import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.errors import IllegalTransition
from simpletuner_fleet.core.jobs.job import (
    JOB_TRANSITIONS,
    Hold,
    Job,
    JobState,
    Requirements,
    Results,
    Target,
)
from simpletuner_fleet.core.jobs.progress import Progress
from simpletuner_fleet.core.people.visibility import Visibility, VisibilityScope
from simpletuner_fleet.ports import ConcurrentChange, JobFilter, Store, Tx, View
from tests.store.samples import BUNDLE, job

EVERY_FIELD = job(
    7,
    requires=Requirements(
        target=Target.WORKER,
        gpus=2,
        min_vram_gb=24.5,
        accelerator="cuda",
        trainer="command",
        labels=(("gpu_type", "a100*"), ("team", "nlp")),
        owner="t_anna",
    ),
    class_id="c_seven",
    state=JobState.QUEUED,
    hold=Hold.BACKOFF,
    rank=-3.25,
    priority=5,
    not_before=1234.5678,
    retry_on_failure=True,
    time_limit_s=3600.0,
    on_time_limit="requeue",
    on_partition="continue",
    depends_on=("j_1", "j_2"),
    retry_of="j_0",
    name="großer Lauf ✓",
    epoch=12,
    attempts=3,
    losses=1,
    failures=1,
    lost_workers=("w_9",),
    attempt_id="a_1",
    worker_id="w_1",
    gpus=("GPU-1", "GPU-2"),
    progress=Progress(step=10, loss=0.25, more={"said": "größer", "nothing": None}),
    error="CUDA out of memory",
    reason="worker_lost",
    started_at=1.5,
    finished_at=2.5,
    version=4,
    team="tm_lab",
    visibility=Visibility.TEAM,
)


async def add(store: Store, *jobs: Job) -> None:
    def step(tx: Tx) -> None:
        for each in jobs:
            tx.add_job(each, BUNDLE)

    await store.write(step)


async def save(store: Store, changed: Job) -> None:
    await store.write(lambda tx: tx.save_job(changed))


async def read_job(store: Store, job_id: str) -> Job | None:
    return await store.read(lambda view: view.job(job_id))


def ids(jobs: list[Job]) -> list[str]:
    return [each.id for each in jobs]


async def test_a_job_comes_back_as_it_was_stored(store: Store) -> None:
    await add(store, EVERY_FIELD)
    assert await store.read(lambda view: view.job("j_7")) == EVERY_FIELD
    assert await store.read(lambda view: view.job_bundle("j_7")) == BUNDLE


async def test_every_changing_field_is_saved(store: Store) -> None:
    plain = job(
        7,
        requires=EVERY_FIELD.requires,
        class_id="c_seven",
        depends_on=("j_1", "j_2"),
        retry_of="j_0",
        team="tm_lab",
        visibility=Visibility.TEAM,
    )
    await add(store, plain)
    await save(store, replace(EVERY_FIELD, version=0))
    assert await store.read(lambda view: view.job("j_7")) == replace(EVERY_FIELD, version=1)


async def test_each_changing_field_is_saved_when_nothing_else_changes(store: Store) -> None:
    known = job(7)
    await add(store, known)
    for changes in (
        *({"progress": Progress(step=1)}, {"started_at": 1.5}, {"spent_micros": 7}),
        *({"state": JobState.DISPATCHED}, {"finished_at": 2.5}, {"results": Results.PENDING}),
        *({"hold": Hold.BACKOFF}, {"not_before": 9.5}, {"epoch": 12}, {"attempts": 3}),
        *({"attempt_id": "a_1"}, {"worker_id": "w_1"}, {"gpus": ("GPU-1", "GPU-2")}),
        *(
            {"rank": -3.25},
            {"priority": 5},
            {"max_retries": 4},
            {"start_at": 8.5},
            {"retry_on_failure": True},
        ),
        *({"time_limit_s": 3600.0}, {"on_time_limit": "requeue"}, {"on_partition": "continue"}),
        *({"max_cost_micros": 9}, {"on_max_cost": "finish"}, {"name": "großer Lauf"}, {"losses": 1}),
        *({"failures": 1}, {"lost_workers": ("w_9",)}, {"interruptions": 2}, {"refused_by": ("i_1",)}),
        *({"error": "oom"}, {"reason": "worker_lost"}, {"tags": ("a", "b")}, {"note": "seen"}),
        {"requires": EVERY_FIELD.requires, "class_id": EVERY_FIELD.class_id},
        *({"progress": None}, {"gpus": ()}, {"tags": ()}, {"retry_on_failure": False}, {"hold": Hold.NONE}),
    ):
        assert replace(known, **changes) != known
        await save(store, replace(known, **changes))
        known = replace(known, **changes, version=known.version + 1)
        assert await read_job(store, "j_7") == known, changes


async def test_an_unknown_job_is_none(store: Store) -> None:
    def look(view: View) -> list[object]:
        return [
            view.job("j_9"),
            view.job_bundle("j_9"),
        ]

    assert await store.read(look) == [None] * 2


async def test_a_job_cannot_be_added_twice(store: Store) -> None:
    await add(store, job(1))
    with pytest.raises(ConcurrentChange):
        await add(store, job(1, seq=2))
    with pytest.raises(ConcurrentChange):
        await add(store, job(2, seq=1))


async def test_a_save_with_an_old_version_is_refused(store: Store) -> None:
    await add(store, job(1))
    await save(store, job(1, priority=1))
    with pytest.raises(ConcurrentChange):
        await save(store, job(1, priority=2))
    kept = await store.read(lambda view: view.job("j_1"))
    assert kept == job(1, priority=1, version=1)


async def test_a_job_that_is_not_there_cannot_be_saved(store: Store) -> None:
    with pytest.raises(ConcurrentChange):
        await save(store, job(1))


LEGAL = {(state, after) for (state, _), after in JOB_TRANSITIONS.items()} | {(s, s) for s in JobState}


async def test_every_edge_of_the_machine_is_taken_and_no_other(store: Store) -> None:
    edges = [(before, after) for before in JobState for after in JobState]
    await add(store, *(job(number, state=before) for number, (before, _) in enumerate(edges, 1)))
    for number, (before, after) in enumerate(edges, 1):
        if (before, after) in LEGAL:
            await save(store, job(number, state=after))
        else:
            with pytest.raises(IllegalTransition):
                await save(store, job(number, state=after))
        kept = await read_job(store, f"j_{number}")
        assert kept is not None
        assert kept.state is (after if (before, after) in LEGAL else before)


async def test_held_jobs_are_counted_in_the_queue(store: Store) -> None:
    held = job(1, hold=Hold.BACKOFF, not_before=50.0)
    await add(store, held, job(2), job(3, state=JobState.BLOCKED, hold=Hold.APPROVAL))
    assert await store.read(lambda view: ids(view.queue_page(None, 10))) == ["j_1", "j_2"]
    await save(store, replace(held, hold=Hold.NONE, not_before=None))
    assert await store.read(lambda view: ids(view.queue_page(None, 10))) == ["j_1", "j_2"]


async def test_the_queue_is_paged_in_scheduling_order(store: Store) -> None:
    ranks = [3.0, 1.0, 2.0, 1.0, 2.0]
    await add(store, *(job(number, rank=rank) for number, rank in enumerate(ranks, 1)))
    first = await store.read(lambda view: view.queue_page(None, 2))
    assert ids(first) == ["j_2", "j_4"]
    second = await store.read(lambda view: view.queue_page((first[-1].rank, first[-1].seq), 2))
    assert ids(second) == ["j_3", "j_5"]
    third = await store.read(lambda view: view.queue_page((second[-1].rank, second[-1].seq), 2))
    assert ids(third) == ["j_1"]


async def test_the_jobs_ahead_are_counted(store: Store) -> None:
    await add(store, job(1, rank=1.0), job(2, rank=1.0), job(3, rank=0.5), job(4, state=JobState.RUNNING))

    def look(view: View) -> list[int]:
        return [view.queued_ahead(rank, seq) for rank, seq in ((0.5, 3), (1.0, 1), (1.0, 2))]

    assert await store.read(look) == [0, 1, 2]


async def test_the_jobs_between_two_places_of_the_queue_are_counted(store: Store) -> None:
    ranks = [3.0, 1.0, 2.0, 1.0, 2.0, 1.0]
    await add(store, *(job(number, rank=rank) for number, rank in enumerate(ranks, 1)))
    in_order = [(1.0, 2), (1.0, 4), (1.0, 6), (2.0, 3), (2.0, 5), (3.0, 1)]

    def look(view: View) -> list[list[int]]:
        return [[view.queued_ahead(*to, since=of) for to in in_order[at:]] for at, of in enumerate(in_order)]

    assert await store.read(look) == [list(range(6 - at)) for at in range(6)]


async def test_jobs_are_paged_newest_first_and_filtered(store: Store) -> None:
    await add(
        store,
        job(1, owner="t_ben"),
        job(2, state=JobState.RUNNING, worker_id="w_1"),
        job(3, config_name="flux"),
        job(4, owner="t_ben", state=JobState.FAILED),
    )

    async def page(before_seq: int | None = None, limit: int = 10, **where: object) -> list[str]:
        return ids(await store.read(lambda view: view.jobs_page(JobFilter(**where), before_seq, limit)))  # type: ignore[arg-type]

    assert await page() == ["j_4", "j_3", "j_2", "j_1"]
    assert await page(limit=2) == ["j_4", "j_3"]
    assert await page(before_seq=3) == ["j_2", "j_1"]
    assert await page(owner="t_ben") == ["j_4", "j_1"]
    assert await page(states=("running", "failed")) == ["j_4", "j_2"]
    assert await page(worker_id="w_1") == ["j_2"]
    assert await page(config_name="flux") == ["j_3"]
    assert await page(created_since=103.0) == ["j_4", "j_3"]
    assert await page(owner="t_ben", states=("queued",), before_seq=4) == ["j_1"]
    assert await page(text="FLUX") == ["j_3"]
    assert await page(text="j_") == ["j_4", "j_3", "j_2", "j_1"]
    assert await page(text="%") == []
    assert await page(text="j_3", states=("queued",)) == ["j_3"]


async def test_jobs_are_counted_by_state(store: Store) -> None:
    await add(store, job(1), job(2), job(3, state=JobState.RUNNING))
    await save(store, job(3, state=JobState.COMPLETED))
    assert await store.read(lambda view: view.job_counts()) == {"queued": 2, "completed": 1}


async def test_counts_are_true_inside_the_transaction_that_changes_them(store: Store) -> None:
    await add(store, job(1))

    def step(tx: Tx) -> dict[str, int]:
        tx.add_job(job(2, class_id="other"), BUNDLE)
        tx.save_job(job(1, state=JobState.DISPATCHED))
        return tx.job_counts()

    assert await store.write(step) == {"queued": 1, "dispatched": 1}
    assert await store.read(lambda view: view.job_counts()) == {"queued": 1, "dispatched": 1}


async def test_due_backoffs_come_in_order_of_their_time(store: Store) -> None:
    await add(
        store,
        job(1, hold=Hold.BACKOFF, not_before=30.0),
        job(2, hold=Hold.BACKOFF, not_before=20.0),
        job(3, hold=Hold.BACKOFF, not_before=10.0),
        job(4),
    )
    assert await store.read(lambda view: view.next_backoff_at()) == 10.0
    assert ids(await store.read(lambda view: view.due_backoffs(20.0, 10))) == ["j_3", "j_2"]
    assert ids(await store.read(lambda view: view.due_backoffs(99.0, 1))) == ["j_3"]


async def test_without_backoffs_there_is_no_next_one(store: Store) -> None:
    await add(store, job(1))
    assert await store.read(lambda view: view.next_backoff_at()) is None


async def test_dependents_are_the_blocked_jobs_that_name_it(store: Store) -> None:
    waiting = job(3, state=JobState.BLOCKED, hold=Hold.DEPENDENCY, depends_on=("j_1", "j_2"))
    await add(store, job(1), job(2), waiting, job(4, depends_on=("j_1",)))
    assert ids(await store.read(lambda view: view.dependents_of("j_1", 0, 9))) == ["j_3"]
    assert ids(await store.read(lambda view: view.dependents_of("j_3", 0, 9))) == []
    await save(store, replace(waiting, state=JobState.QUEUED, hold=Hold.NONE))
    assert await store.read(lambda view: view.dependents_of("j_2", 0, 9)) == []


async def test_dependents_come_by_their_number_after_a_cursor(store: Store) -> None:
    waiting = [job(n, state=JobState.BLOCKED, hold=Hold.DEPENDENCY, depends_on=("j_1",)) for n in (4, 2, 3)]
    await add(store, job(1), *waiting)

    def pages(view: View) -> list[list[str]]:
        return [ids(view.dependents_of("j_1", *page)) for page in ((0, 2), (3, 2), (4, 2))]

    assert await store.read(pages) == [["j_2", "j_3"], ["j_4"], []]
    assert await store.write(pages) == [["j_2", "j_3"], ["j_4"], []]


async def test_text_that_a_database_refuses_is_kept_as_far_as_it_can_be(store: Store) -> None:
    await add(store, job(1))
    await save(store, job(1, error="a\0b", progress=Progress(more={"k": "x\0"})))
    kept = await store.read(lambda view: view.job("j_1"))
    assert kept is not None
    assert kept.error is not None
    assert (kept.error[0], kept.error[-1]) == ("a", "b")
    assert await store.read(lambda view: view.config("a\0b")) is None


async def test_a_caller_gets_what_they_may_see_and_counts_of_it(store: Store) -> None:
    theirs = {"owner": "u_ann", "team": "tm_lab"}
    await add(
        store,
        job(1, state=JobState.QUEUED, visibility=Visibility.PRIVATE, **theirs),
        job(2, state=JobState.QUEUED, visibility=Visibility.TEAM, **theirs),
        job(3, state=JobState.QUEUED, owner="u_ann"),
        job(4, state=JobState.BLOCKED, visibility=Visibility.TEAM, owner="u_fay", team="tm_art"),
    )
    ann = VisibilityScope(ids=frozenset({"u_ann", "t_1"}), teams=frozenset({"tm_lab"}))
    tom = VisibilityScope(ids=frozenset({"u_tom"}), teams=frozenset({"tm_lab", "tm_x"}))
    nobody = VisibilityScope()
    seen = {
        name: await store.read(
            lambda view, who=who: (  # type: ignore[misc]
                ids(view.jobs_page(JobFilter(seen_by=who), None, 9)),
                ids(view.queue_page(None, 9, who)),
                view.job_counts(who),
            )
        )
        for name, who in {
            "ann": ann,
            "tom": tom,
            "nobody": nobody,
            "admin": VisibilityScope(above=True),
        }.items()
    }
    assert seen == {
        "ann": (["j_3", "j_2", "j_1"], ["j_1", "j_2", "j_3"], {"queued": 3}),
        "tom": (["j_3", "j_2"], ["j_2", "j_3"], {"queued": 2}),
        "nobody": (["j_3"], ["j_3"], {"queued": 1}),
        "admin": (["j_4", "j_3", "j_2", "j_1"], ["j_1", "j_2", "j_3"], {"queued": 3, "blocked": 1}),
    }
    of_one = await store.read(lambda view: (view.job_counts(None, "u_ann"), view.job_counts(tom, "u_ann")))
    assert of_one == ({"queued": 3}, {"queued": 2})
    first = (await store.read(lambda view: view.queue_page(None, 1, tom)))[0]
    assert ids(await store.read(lambda view: view.queue_page((first.rank, first.seq), 9, tom))) == ["j_3"]
    assert ids(await store.read(lambda view: view.jobs_page(JobFilter(team="tm_art"), None, 9))) == ["j_4"]


async def test_many_jobs_are_named_at_once_and_those_that_may_not_be_seen_are_not(store: Store) -> None:
    await add(
        store,
        job(1, state=JobState.QUEUED, name="cats", owner="u_ann"),
        job(2, state=JobState.QUEUED, name=None, owner="u_ann"),
        job(3, state=JobState.QUEUED, name="mine", owner="u_ann", visibility=Visibility.PRIVATE),
    )
    asked = ["j_1", "j_1", "j_2", "j_3", *(f"j_none{number}" for number in range(1_200))]
    whole, seen, nothing = await store.read(
        lambda view: (view.job_titles(asked), view.job_titles(asked, VisibilityScope()), view.job_titles([]))
    )
    assert whole == {"j_1": "cats", "j_2": job(2).config_name, "j_3": "mine"}
    assert set(seen) == {"j_1", "j_2"}
    assert nothing == {}
