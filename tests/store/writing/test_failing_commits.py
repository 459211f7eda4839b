"""Random stories in which commits fail: observer, memory and database agree after every chapter."""

import asyncio
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.ports import Tx
from simpletuner_fleet.store.memory.store import MemoryStore
from tests.ready_databases import lay_sqlite
from tests.store.outsider import Rig, sqlite_rig
from tests.store.test_equal_answers import Operation, everything, outcome, step_of, steps

Parts = tuple[list[Operation], bool]
Chapter = tuple[list[Parts], bool]
"""Steps that are handed in together, and whether another program keeps the lock meanwhile."""
chapters = st.tuples(st.lists(steps, min_size=1, max_size=4), st.booleans())


async def tell(rig: Rig, model: MemoryStore, parts: list[Parts], lock_is_taken: bool) -> None:
    together = [step_of(*one) for one in parts]
    if lock_is_taken:
        with rig.commits_held_up():
            answers = await asyncio.gather(*(outcome(rig.store, step) for step in together))
    else:
        answers = await asyncio.gather(*(outcome(rig.store, step) for step in together))
        assert StoreUnavailable not in answers
    for step, answer in zip(together, answers, strict=True):
        if answer is not StoreUnavailable:
            assert await outcome(model, step) == answer


def use_up_the_numbers(tx: Tx) -> None:
    """The stories number their rows themselves: those numbers must be known as given away."""
    for _ in range(6):
        tx.next_seq()
    tx.raise_epoch_to(6)


async def tell_all(path: Path, story: list[Chapter]) -> None:
    model = MemoryStore()
    async with sqlite_rig(path, busy_timeout_s=0.0) as rig:
        await rig.store.write(use_up_the_numbers)
        await model.write(use_up_the_numbers)
        for parts, lock_is_taken in story:
            await tell(rig, model, parts, lock_is_taken)
            assert await rig.memory_equals_database()
            assert await rig.store.read(everything) == await model.read(everything)
        await rig.restart()
        assert await rig.memory_equals_database()


@settings(max_examples=60)
@given(st.lists(chapters, min_size=1, max_size=8))
def test_commits_that_fail_leave_everybody_with_the_same_story(story: list[Chapter]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(tell_all(lay_sqlite(Path(folder) / "fleet.db"), story))
