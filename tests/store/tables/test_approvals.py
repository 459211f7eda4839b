from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Hold, Job, JobState
from simpletuner_fleet.core.people.approvals import Approval, ApprovalState, Requirement, Vote
from simpletuner_fleet.core.people.visibility import Visibility, VisibilityScope
from simpletuner_fleet.ports import Store, Tx
from tests.store.samples import BUNDLE, job


def an_approval(number: int, expires_at: float | None = None) -> Approval:
    return Approval(
        job_id=f"j_{number}",
        owner="u_ann",
        requirements=(Requirement(why="größer", count=2),),
        asked_at=10.0 - number,
        expires_at=expires_at,
        votes=(Vote(by="u_lea", name="lea", at=1.5, note="gut"),),
    )


async def kept(store: Store, *rows: tuple[Job, Approval]) -> None:
    def step(tx: Tx) -> None:
        for one, approval in rows:
            tx.add_job(one, BUNDLE)
            tx.put_approval(approval)

    await store.write(step)


async def pending(
    store: Store, limit: int = 9, after: Approval | None = None, who: VisibilityScope | None = None
) -> list[str]:
    place = (after.asked_at, after.job_id) if after else None
    return [one.job_id for one in await store.read(lambda view: view.pending_approvals(place, limit, who))]


async def test_approvals_are_kept_listed_and_due(store: Store) -> None:
    waiting = [job(number, state=JobState.BLOCKED, hold=Hold.APPROVAL) for number in (1, 2, 3)]
    asked = [an_approval(1, 100.0), an_approval(2), an_approval(3, 50.0)]
    await kept(store, *zip(waiting, asked, strict=True))
    assert await store.read(lambda view: view.approval("j_1")) == an_approval(1, 100.0)
    assert await store.read(lambda view: view.approval("j_9")) is None
    assert await pending(store) == ["j_3", "j_2", "j_1"]
    due = await store.read(lambda view: view.due_approvals(100.0, 9))
    assert [one.job_id for one in due] == ["j_3", "j_1"]
    assert await store.read(lambda view: len(view.due_approvals(60.0, 9))) == 1
    await store.write(lambda tx: tx.put_approval(replace(an_approval(3, 50.0), state=ApprovalState.REJECTED)))
    assert await pending(store) == ["j_2", "j_1"]


async def test_a_page_of_approvals_has_only_what_jobs_wait_for_and_the_caller_may_see(store: Store) -> None:
    waits = {"state": JobState.BLOCKED, "hold": Hold.APPROVAL, "owner": "u_ann", "team": "tm_lab"}
    hidden = {**waits, "visibility": Visibility.PRIVATE}
    await kept(
        store,
        (job(1, **waits), an_approval(1)),
        (job(2, **hidden), an_approval(2)),
        (job(3, **{**waits, "visibility": Visibility.TEAM}), replace(an_approval(3), asked_at=9.0)),
        (job(4, **{**waits, "hold": Hold.DEPENDENCY}), an_approval(4)),
        (job(5, state=JobState.CANCELLED), an_approval(5)),
    )
    tom = VisibilityScope(ids=frozenset({"u_tom"}), teams=frozenset({"tm_lab"}))
    assert await pending(store) == ["j_2", "j_1", "j_3"]
    assert await pending(store, limit=2) == ["j_2", "j_1"]
    assert await pending(store, who=tom) == ["j_1", "j_3"]
    assert await pending(store, limit=1, who=tom) == ["j_1"]
    assert await pending(store, after=an_approval(1)) == ["j_3"], "asked for at the same moment as j_1"
    assert await pending(store, after=an_approval(2), who=tom) == ["j_1", "j_3"]
    assert await pending(store, who=VisibilityScope()) == ["j_1"]
