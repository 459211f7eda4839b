"""What a gigabyte of checkpoint costs the server where it goes through it, and where it goes straight to the bucket."""

import os
import sys
from pathlib import Path

import pytest

from tests.e2e.kit import World
from tests.e2e.processes import stat_of
from tests.e2e.storage.test_checkpoints import stored_step
from tests.s3_server import BUCKET, CREDENTIALS, running_s3

GIGABYTE = 1_000_000_000
AT_MOST = 0.2
SAVES = f"""
import os, pathlib, time
folder = pathlib.Path(os.environ["SIMPLETUNER_OUTPUT_DIR"]) / "checkpoint-7"
folder.mkdir()
with (folder / "weights").open("wb") as file:
    for _ in range(100):
        file.write(os.urandom({GIGABYTE // 100}))
(folder / ".guard").touch()
time.sleep(600)
"""


def cpu_s(pid: int) -> float:
    user, system = stat_of(pid)[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_gigabyte_that_goes_straight_to_the_bucket_costs_the_server_next_to_nothing(tmp_path: Path) -> None:
    """The figures are in docs/benchmarks.md."""
    cost = {}
    for way in ("off", "workers"):
        folder = tmp_path / way
        folder.mkdir()
        world = World(folder)
        world.environment.update(CREDENTIALS)
        try:
            with running_s3() as endpoint:
                world.start_server(
                    SIMPLETUNER_STORAGE_URL=f"s3://{BUCKET}/fleet?endpoint={endpoint}",
                    SIMPLETUNER_STORAGE_DIRECT=way,
                    SIMPLETUNER_HEARTBEAT_INTERVAL="2",
                    SIMPLETUNER_HEARTBEAT_TIMEOUT="60",
                )
                world.start_worker("first")
                before = cpu_s(world.orchestrator.pid)
                job_id = world.submit(world.command(sys.executable, "-c", SAVES))
                stored_step(world, job_id, at_least=7, within_s=500.0)
                cost[way] = cpu_s(world.orchestrator.pid) - before
        finally:
            world.close()
    print(f"through the server {cost['off']:.2f} s of CPU, straight to the bucket {cost['workers']:.2f} s")
    assert cost["workers"] < AT_MOST * cost["off"], cost
