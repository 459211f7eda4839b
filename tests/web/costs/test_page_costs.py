"""Two thousand workers and twenty thousand jobs: what a look at each page costs the server, and how large it is."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.e2e.kit import World
from tests.web.console import Console, running_console

WORKERS, JOBS = 2_000, 20_000
MOST_CPU_MS = 50.0
MOST_BYTES = 200_000
LOOKS = 5
PAGES = (
    *("/", "/?view=mine", "/fleet", "/admin/workers"),
    *("/jobs", "/jobs?show=waiting", "/jobs?show=ended&sort=finished"),
)
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    world = World(tmp_path_factory.mktemp("crowd"))
    world.warm = False
    with running_console(world, workers=WORKERS, jobs=JOBS) as console:
        yield console


def cpu_s(process: int) -> float:
    """All that the process has used so far, in all its threads."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


@pytest.mark.long
@pytest.mark.parametrize("path", PAGES)
def test_a_look_costs_little_however_large_the_fleet_is(crowded: Console, path: str) -> None:
    process = crowded.world.orchestrator.pid
    with httpx2.Client(
        base_url=crowded.url, cookies=crowded.cookies("admin"), verify=False, timeout=60.0
    ) as client:
        answer = client.get(path)
        assert answer.status_code == 200, answer.text[:500]
        time.sleep(0.5)
        before = cpu_s(process)
        for _ in range(LOOKS):
            client.get(path)
        spent_ms = (cpu_s(process) - before) / LOOKS * 1000
    size = len(answer.content)
    print(f"{path}: {spent_ms:.0f} ms of CPU, {size / 1000:.0f} KB")
    assert size <= MOST_BYTES
    assert spent_ms <= MOST_CPU_MS
