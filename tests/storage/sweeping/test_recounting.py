"""What was counted of stored files, where the rows of the database have been edited behind the server's back."""

import pytest

from simpletuner_fleet.ports import Tx, View
from simpletuner_fleet.storage.sweeping.sweeper import sweep_storage_once
from tests.http.api_kit import orchestrator
from tests.store.conftest import rig
from tests.store.outsider import Rig
from tests.store.samples import BUNDLE, job

__all__ = ["rig"]

EDITS = {
    "rows are gone": ("DELETE FROM job_objects WHERE job_id = 'j_1'", (7, 0, 12, 12)),
    "a row has come": (
        "INSERT INTO job_objects (job_id, sha256, size) VALUES ('j_2', 'x', 100)",
        (1107, 1000, 1112, 1112),
    ),
    "counts are gone": ("DELETE FROM tallies WHERE kind LIKE 'stored%'", (1007, 1000, 1012, 1012)),
    "a count is left": (
        "INSERT INTO tallies (kind, key, n) VALUES ('stored by owner', 't_nobody', 3)",
        (1007, 1000, 1012, 1012),
    ),
}


def stored(view: View) -> tuple[int, ...]:
    by_owner = view.stored_bytes_by_owner()
    assert set(by_owner) <= {"t_ann", "t_bob"}
    return (
        by_owner["t_ann"],
        view.stored_bytes_of_job("j_1"),
        sum(by_owner.values()),
        view.stored_bytes_of_jobs(),
    )


@pytest.mark.parametrize("edit", EDITS)
async def test_what_was_counted_comes_right_again_with_the_next_sweep(
    rig: Rig,
    edit: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def step(tx: Tx) -> None:
        for number, owner in ((1, "t_ann"), (2, "t_ann"), (3, "t_bob")):
            tx.add_job(job(number, owner=owner, team="vision"), BUNDLE)
        for number, sha256, size in ((1, "a", 1000), (2, "b", 7), (3, "c", 5)):
            tx.own_object(f"j_{number}", sha256, size, 1e12)

    await rig.store.write(step)
    statement, right = EDITS[edit]
    rig.outsider.run(statement)
    async with orchestrator(rig.store) as running:
        await sweep_storage_once(running.deps.storage)
        assert await rig.store.read(stored) == right
        assert caplog.text.count("it is counted anew") == 1
        await sweep_storage_once(running.deps.storage)
        assert caplog.text.count("it is counted anew") == 1, "and is right from then on"
