"""The process that asks NVML, with a library in its place that answers as the real one does."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.agent.gpus.gpu_probe import NVML_CHILD

CHILD = NVML_CHILD[-1]
PYNVML = """
import json, os
from types import SimpleNamespace as Facts

class NVMLError(Exception): pass
class NVMLError_GpuIsLost(NVMLError): pass
class NVMLError_LibraryNotFound(NVMLError): pass

NVML_TEMPERATURE_GPU = NVML_MEMORY_ERROR_TYPE_UNCORRECTED = NVML_VOLATILE_ECC = 0
GIB = 1024**3
GPUS = json.loads(os.environ["FAKE_GPUS"])
asked = {"handles": 0}

def nvmlInit(): pass
def nvmlDeviceGetCount(): return len(GPUS)
def nvmlDeviceGetHandleByIndex(index):
    gpu = GPUS[index]
    asked["handles"] += 1
    if gpu.get("closed"): raise NVMLError("Unknown Error")
    if gpu.get("lost_after") is not None and asked["handles"] > gpu["lost_after"]: raise NVMLError_GpuIsLost()
    return gpu
def fact_of(gpu, name):
    if name not in gpu: raise NVMLError(name)
    return gpu[name]
def nvmlDeviceGetUUID(gpu): return fact_of(gpu, "uuid")
def nvmlDeviceGetName(gpu): return "NVIDIA H200"
def nvmlDeviceGetMemoryInfo(gpu):
    if gpu.get("dead"): raise NVMLError_GpuIsLost()
    return Facts(total=140 * GIB, used=3 * GIB)
def nvmlDeviceGetUtilizationRates(gpu): return Facts(gpu=5)
def nvmlDeviceGetTemperature(gpu, kind): return 40
def nvmlDeviceGetPowerUsage(gpu): return 90_000
def processes(gpu, name):
    return [Facts(pid=pid, usedGpuMemory=None if gb is None else int(gb * GIB)) for pid, gb in fact_of(gpu, name)]
def nvmlDeviceGetComputeRunningProcesses(gpu): return processes(gpu, "computing")
def nvmlDeviceGetGraphicsRunningProcesses(gpu): return processes(gpu, "drawing")
def nvmlDeviceGetTotalEccErrors(gpu, kind, counter): return fact_of(gpu, "ecc")
"""


def ask(tmp_path: Path, gpus: list[dict[str, Any]], *questions: str) -> list[dict[str, Any]]:
    (tmp_path / "pynvml.py").write_text(PYNVML)
    environment = {"FAKE_GPUS": json.dumps(gpus), "PYTHONPATH": str(tmp_path)}
    asked = "".join(f"{question}\n" for question in questions)
    ran = subprocess.run(
        [sys.executable, CHILD],
        input=asked,
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return [json.loads(line) for line in ran.stdout.splitlines()]


def sampled(tmp_path: Path, **gpu: Any) -> tuple[float | None, bool | None]:
    facts = {"uuid": "GPU-1", "computing": [], "drawing": [], "ecc": 0, **gpu}
    listed, sample = ask(tmp_path, [facts], "list", "sample")
    assert listed["gpus"][0]["healthy"] == sample["gpus"][0]["healthy"]
    assert listed["gpus"][0]["foreign_memory_gb"] == sample["gpus"][0]["foreign_memory_gb"]
    return sample["gpus"][0]["foreign_memory_gb"], sample["gpus"][0]["healthy"]


@pytest.fixture
def trainer() -> Iterator[int]:
    """A process of a job."""
    environment = {**os.environ, "SIMPLETUNER_ATTEMPT_ID": "a_1"}
    with subprocess.Popen(["sleep", "60"], env=environment) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def stranger() -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid
        process.kill()


def test_memory_of_jobs_is_not_foreign_and_all_other_is(tmp_path: Path, trainer: int, stranger: int) -> None:
    assert sampled(tmp_path) == (0.0, True)
    assert sampled(tmp_path, computing=[[trainer, 60]]) == (0.0, True)
    assert sampled(tmp_path, computing=[[trainer, 60], [stranger, 2.5]]) == (2.5, True)
    assert sampled(tmp_path, drawing=[[stranger, 0.5]], computing=[[stranger, 0.75]]) == (0.75, True)
    assert sampled(tmp_path, computing=[[trainer, None]]) == (0.0, True)


def test_what_cannot_be_seen_is_not_known(tmp_path: Path, stranger: int) -> None:
    assert sampled(tmp_path, computing=[[2**22 + 5, 9]]) == (None, True)
    assert sampled(tmp_path, computing=[[stranger, None]]) == (None, True)
    [sample] = ask(tmp_path, [{"uuid": "GPU-1"}], "sample")
    assert (sample["gpus"][0]["foreign_memory_gb"], sample["gpus"][0]["healthy"]) == (None, True)


def test_errors_of_memory_and_a_lost_gpu_are_unhealthy(tmp_path: Path) -> None:
    assert sampled(tmp_path, ecc=3) == (0.0, False)
    assert sampled(tmp_path, dead=True)[1] is False


def test_a_gpu_that_fell_off_the_bus_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    fine = {"uuid": "GPU-2", "computing": [], "ecc": 0}
    _, sample = ask(tmp_path, [{"uuid": "GPU-1", "lost_after": 2}, fine], "list", "sample")
    assert sample["gpus"][0] == {"uuid": "GPU-1", "healthy": False}
    assert (sample["gpus"][1]["uuid"], sample["gpus"][1]["healthy"]) == ("GPU-2", True)


def test_a_gpu_that_is_not_opened_at_the_start_keeps_no_other_from_being_found(tmp_path: Path) -> None:
    closed, fine = {"uuid": "GPU-1", "closed": True}, {"uuid": "GPU-2", "computing": [], "ecc": 0}
    listed, sample = ask(tmp_path, [closed, fine], "list", "sample")
    assert [(gpu["index"], gpu["uuid"]) for gpu in listed["gpus"]] == [(1, "GPU-2")]
    assert listed["broken"] == ["GPU 0: Unknown Error"]
    assert [(gpu["uuid"], gpu["healthy"]) for gpu in sample["gpus"]] == [(None, False), ("GPU-2", True)]
