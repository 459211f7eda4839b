"""What operators watch, and that it costs the same however many workers there are and whatever they call their GPUs."""

import asyncio
from typing import Any

import pytest

from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.core.placement.roster.roster import Roster
from simpletuner_fleet.core.workers.worker import AdminState, Gpu
from simpletuner_fleet.http.api.service import kept_figures
from simpletuner_fleet.http.api.service.kept_figures import SeldomWalked
from simpletuner_fleet.queries.figures import MOST_MODELS, fleet_figures, gpus_by_state, stored_figures
from tests.queries.test_overview import NOW, connected, fleet_of, gpus
from tests.store.samples import BUNDLE, job


def roster_of(*workers: Any) -> Roster:
    roster = Roster()
    for worker in workers:
        roster.put_worker(worker)
    return roster


def test_gpus_are_free_busy_or_away() -> None:
    roster = roster_of(
        connected(1, gpus=gpus(4), max_jobs=4),
        connected(
            2, gpus=(Gpu(index=0, uuid="GPU-2", name="A100", vram_gb=80.0),), admin=AdminState.DRAINING
        ),
        connected(3, gpus=(Gpu(index=0, uuid="GPU-3", name="RTX", vram_gb=24.0, unusable="unhealthy"),)),
    )
    assert gpus_by_state(roster) == {("A100", "free"): 4, ("A100", "away"): 1, ("RTX", "away"): 1}


def test_a_gpu_that_two_workers_offer_is_one() -> None:
    shared = (Gpu(index=0, uuid="GPU-0000-1111", name="A100", vram_gb=80.0),)
    roster = roster_of(connected(1, gpus=shared), connected(2, gpus=shared, admin=AdminState.DRAINING))
    assert gpus_by_state(roster) == {("A100", "free"): 1}


def test_there_are_no_more_models_than_a_page_has_room_for() -> None:
    named = [
        (Gpu(index=0, uuid=f"GPU-{number}", name=f"{'x' * 500}{number}", vram_gb=80.0),)
        for number in range(200)
    ]
    counts = gpus_by_state(roster_of(*(connected(at, gpus=gpu) for at, gpu in enumerate(named, 1))))
    assert sum(counts.values()) == 200
    assert len({model for model, _ in counts}) <= MOST_MODELS + 1
    assert max(len(model) for model, _ in counts) <= 64


async def test_the_oldest_wait_is_told_by_reason_and_by_what_it_takes() -> None:
    fleet = await fleet_of(
        lambda tx: tx.add_job(job(1, created_at=NOW - 60.0), BUNDLE),
        lambda tx: tx.add_job(job(2, created_at=NOW - 3600.0), BUNDLE),
    )
    figures = await fleet_figures(fleet)
    assert figures.workers == {}
    waits = figures.waiting
    assert {reason: (wait.kind, wait.jobs, wait.oldest_s) for reason, wait in waits.items()} == {
        "NO_WORKERS": ("admin", 2, 3600.0)
    }
    assert (await stored_figures(fleet)).jobs_bytes == 0


async def test_a_walk_over_the_fleet_is_made_seldom_and_the_more_so_the_longer_it_takes() -> None:
    now = [100.0]
    walks = []

    async def walk() -> int:
        walks.append(now[0])
        now[0] += 0.2
        return len(walks)

    kept: SeldomWalked[int] = SeldomWalked(5.0, monotonic=lambda: now[0])
    assert [await kept.of(walk), await kept.of(walk)] == [1, 1]
    now[0] += 19.0
    assert await kept.of(walk) == 1
    assert round(kept.age_s) == 19
    now[0] += 2.0
    assert await kept.of(walk) == 2


async def test_a_walk_that_takes_long_is_waited_for_by_nobody_and_is_not_made_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_figures, "PATIENCE_S", 0.01)
    goes_on, walks = asyncio.Event(), 0

    async def walk() -> int:
        nonlocal walks
        walks += 1
        await goes_on.wait()
        return walks

    kept: SeldomWalked[int] = SeldomWalked(0.0, share=0.0)
    assert [await kept.of(walk), await kept.of(walk), walks] == [None, None, 1]
    assert kept.age_s == float("inf")
    goes_on.set()
    assert await kept.of(walk) == 1
    goes_on.clear()
    assert [await kept.of(walk), await kept.of(walk), walks] == [1, 1, 2], "the one of before"
    goes_on.set()
    assert await kept.of(walk) == 2


async def test_a_walk_that_fails_is_told_to_whoever_waits_and_made_again() -> None:
    async def fails() -> int:
        raise StoreUnavailable

    async def walk() -> int:
        return 1

    kept: SeldomWalked[int] = SeldomWalked(0.0)
    with pytest.raises(StoreUnavailable):
        await kept.of(fails)
    assert await kept.of(walk) == 1
