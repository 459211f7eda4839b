"""What a large checkpoint costs the server where it goes through it, and where it goes straight to the bucket."""

import os
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.kit import World
from tests.e2e.processes import stat_of
from tests.s3_server import BUCKET, CREDENTIALS, running_s3

CHECKPOINT_BYTES = 200_000_000
AT_MOST = 0.2
SAVES = f"""
import os, pathlib, time
folder = pathlib.Path(os.environ["SIMPLETUNER_OUTPUT_DIR"]) / "checkpoint-7"
folder.mkdir()
with (folder / "weights").open("wb") as file:
    for _ in range(100):
        file.write(os.urandom({CHECKPOINT_BYTES // 100}))
(folder / ".guard").touch()
time.sleep(600)
"""


def cpu_s(pid: int) -> float:
    user, system = stat_of(pid)[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_what_goes_straight_to_the_bucket_costs_the_server_little(tmp_path: Path) -> None:
    """The figures are in docs/benchmarks.md."""
    cost = {}
    for way in ("off", "workers"):
        folder = tmp_path / way
        folder.mkdir()
        world = World(folder)
        world.warm = False
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
                # Whoever looks costs the server, too: it is asked seldom.
                while not world.job(job_id)["checkpoint_step"]:
                    time.sleep(2.0)
                cost[way] = cpu_s(world.orchestrator.pid) - before
        finally:
            world.close()
    print(
        f"{CHECKPOINT_BYTES / 1e6:.0f} MB: {cost['off']:.2f} s of CPU through the server, {cost['workers']:.2f} s straight"
    )
    assert cost["workers"] < AT_MOST * cost["off"], cost
