"""A driver that wakes many GPUs may take longer than a start."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from simpletuner_fleet.agent import program
from simpletuner_fleet.agent.gpus import gpu_probe
from simpletuner_fleet.agent.gpus.gpu_probe import GpuProbe, chosen_gpus, reported_labels
from simpletuner_fleet.agent.guard.shim_client import boottime
from simpletuner_fleet.agent.program import WorkerSettings
from simpletuner_fleet.agent.state_dir import StateDir
from simpletuner_fleet.protocol.messages import Heartbeat, HeartbeatAnswer, Register, Registered
from tests.agent.answering import answering
from tests.agent.attempts.test_attempts_left import agent_of, worker
from tests.agent.gpus.test_gpu_probe import driver
from tests.agent.shim_fixtures import until

SLOW_READINGS = """
import json, os, sys, time
read = 0
for line in sys.stdin:
    if line == "sample\\n":
        read += 1
        while not os.path.exists(f"{sys.argv[1]}-{read}"):
            time.sleep(0.01)
    print(json.dumps({"gpus": [{"index": 0, "uuid": "GPU-1", "utilization": read}]}), flush=True)
"""
SLOW = """
import json, os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
for line in sys.stdin:
    print(json.dumps({"gpus": [{"index": 0, "uuid": "GPU-1", "name": "NVIDIA H200"}]}), flush=True)
"""
ANSWER = Registered(
    worker_id="w_1",
    name="w",
    status="idle",
    stream_url="/s",
    heartbeat_interval_s=30.0,
    heartbeat_timeout_s=120.0,
    keep=[],
)


def settings(gpus: str) -> WorkerSettings:
    return WorkerSettings(url="", token=None, token_file=None, name="w", persistent=True, gpus=gpus)


async def test_gpus_are_taken_up_as_soon_as_the_driver_tells_of_them(tmp_path: Path) -> None:
    awake, registrations = tmp_path / "awake", list[Register]()
    probe = GpuProbe({}, [*driver(tmp_path, SLOW), str(awake)])
    inventory = await probe.find(0.1)
    assert (inventory.source, inventory.gpus) == ("unknown", ())
    assert inventory.problem == "NVML gave no answer: the driver did not answer within 0.1 s"
    assert chosen_gpus(inventory, "0") == ()
    assert reported_labels((), known=inventory.is_known)["accelerator"] == "unknown"
    awake.touch()
    statuses: Iterator[HTTPStatus] = iter([HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.OK])
    with StateDir.open(tmp_path / "worker") as state:
        async with (
            answering(
                lambda: (next(statuses), msgspec.to_builtins(ANSWER)),
                lambda body: registrations.append(msgspec.json.decode(body, type=Register)),
            ) as client,
            worker(state) as (attempts, _runner),
        ):
            agent = agent_of(state, attempts, client)
            await program.take_up_gpus(agent, settings("0"), await probe.answered())
            await agent.drop_work()
    await probe.close()
    assert [gpu.uuid for gpu in registrations[-1].gpus or []] == ["GPU-1"]
    assert registrations[-1].labels["accelerator"] == "cuda"
    assert registrations[-1].max_jobs == 1


async def test_a_worker_leaves_where_the_driver_has_none_of_its_gpus_after_all(tmp_path: Path) -> None:
    with StateDir.open(tmp_path / "worker") as state:
        async with worker(state) as (attempts, _runner):
            agent = agent_of(state, attempts)
            await program.take_up_gpus(agent, settings("0"), gpu_probe.Inventory())
            assert "no such GPU" in (await agent.departure).reason


async def test_an_answer_that_nobody_waits_for_any_more_is_not_taken_for_the_next_one(tmp_path: Path) -> None:
    awake = tmp_path / "awake"
    probe = GpuProbe({}, [*driver(tmp_path, SLOW), str(awake)])
    asking = asyncio.create_task(probe._ask_nvml())
    await asyncio.wait({asking}, timeout=0.3)
    child = probe._child
    asking.cancel()
    await asyncio.wait({asking})
    assert child
    await asyncio.wait_for(child.wait(), 5.0)
    awake.touch()
    assert (await probe.find()).source == "nvml"
    await probe.close()


async def test_a_driver_that_could_not_be_asked_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_probe, "ASK_AGAIN_S", 0.01)
    awake = tmp_path / "awake"
    dies_first = (
        "import os, sys\nif not os.path.exists(sys.argv[1]):\n    open(sys.argv[1], 'w'); sys.exit(1)\n"
    )
    probe = GpuProbe({}, [*driver(tmp_path, dies_first + SLOW), str(awake)])
    assert not (await probe.find()).is_known
    assert [gpu.uuid for gpu in (await probe.answered()).gpus] == ["GPU-1"]
    await probe.close()


async def test_a_reading_that_comes_late_is_taken_when_it_comes_and_the_next_is_asked_for_then(
    tmp_path: Path,
) -> None:
    """Until it comes the one before is told with its age, and heartbeats go on."""
    probe = GpuProbe({}, [*driver(tmp_path, SLOW_READINGS), str(tmp_path / "read")])
    heard: list[Heartbeat] = []

    def sent_readings() -> list[tuple[float | None, bool]]:
        return [(one.utilization, one.age_s is not None) for one in heard[-1].gpus]

    def hear(body: bytes) -> None:
        with suppress(msgspec.ValidationError):
            heard.append(msgspec.json.decode(body, type=Heartbeat))

    beat = (
        HTTPStatus.OK,
        msgspec.to_builtins(
            HeartbeatAnswer(status="idle", heartbeat_interval_s=0.1, heartbeat_timeout_s=9.0)
        ),
    )
    with StateDir.open(tmp_path / "worker") as state:
        async with answering(lambda: beat, hear) as client, worker(state) as (attempts, _runner):
            agent = agent_of(state, attempts, client)
            agent.machine = replace(agent.machine, gpus=(await probe.find()).gpus)
            agent.heartbeat_interval_s = 0.1
            agent.connected.set()
            sampling = asyncio.create_task(program._sample_loop(agent, probe, settings("0")))
            await agent.heartbeat()
            assert sent_readings() == [], "nothing is known yet"
            (tmp_path / "read-1").touch()
            await until(lambda: [one.utilization for one in agent.samples] == [1.0], "the first reading")
            first_read_at = agent.samples_read_at
            await agent.heartbeat()
            assert sent_readings() == [(1.0, False)]
            # The driver takes longer than any answer was waited for before.
            await asyncio.sleep(gpu_probe.USUAL_READING_S + 1.0)
            await agent.heartbeat()
            assert sent_readings() == [(1.0, True)]
            age_s = heard[-1].gpus[0].age_s
            assert age_s == pytest.approx(boottime() - first_read_at, abs=2.0)
            (tmp_path / "read-2").touch()
            await until(lambda: [one.utilization for one in agent.samples] == [2.0], "the late reading")
            await agent.heartbeat()
            assert sent_readings() == [(2.0, False)]
            (tmp_path / "read-3").touch()
            await until(lambda: [one.utilization for one in agent.samples] == [3.0], "the next reading")
            sampling.cancel()
    await probe.close()
