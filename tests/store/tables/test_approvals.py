from msgspec.structs import replace

from simpletuner_fleet.core.people.approvals import Approval, ApprovalState, Requirement, Vote
from simpletuner_fleet.ports import Store


def an_approval(number: int, expires_at: float | None = None) -> Approval:
    return Approval(
        job_id=f"j_{number}",
        owner="u_ann",
        requirements=(Requirement(why="größer", count=2),),
        asked_at=10.0 - number,
        expires_at=expires_at,
        votes=(Vote(by="u_lea", name="lea", at=1.5, note="gut"),),
    )


async def test_approvals_are_kept_listed_and_due(store: Store) -> None:
    for one in (an_approval(1, 100.0), an_approval(2), an_approval(3, 50.0)):
        await store.write(lambda tx, one=one: tx.put_approval(one))  # type: ignore[misc]
    assert await store.read(lambda view: view.approval("j_1")) == an_approval(1, 100.0)
    assert await store.read(lambda view: view.approval("j_9")) is None
    pending = await store.read(lambda view: view.pending_approvals(9))
    assert [one.job_id for one in pending] == ["j_3", "j_2", "j_1"]
    due = await store.read(lambda view: view.due_approvals(100.0, 9))
    assert [one.job_id for one in due] == ["j_3", "j_1"]
    assert await store.read(lambda view: len(view.due_approvals(60.0, 9))) == 1
    await store.write(lambda tx: tx.put_approval(replace(an_approval(3, 50.0), state=ApprovalState.REJECTED)))
    assert [one.job_id for one in await store.read(lambda view: view.pending_approvals(9))] == ["j_2", "j_1"]
