"""Queries NVML in a process of its own: a driver that hangs blocks this process and not the agent.

It reads one command per line and answers with one line of JSON: `list` gives the GPUs, `sample` a sample of each.
What a GPU does not tell is null.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

GIB = 1024**3
OF_A_JOB = b"SIMPLETUNER_ATTEMPT_ID="
"""In the environment of every process of a job, also of one that is just ending."""

uuids: dict[int, str | None] = {}


def known(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except pynvml.NVMLError:
        return None


def text(value: str | bytes | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def is_of_a_job(pid: int) -> bool | None:
    """Returns None where the process cannot be seen: it is gone, or in another container."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except PermissionError:
        return False
    except OSError:
        return None
    return any(variable.startswith(OF_A_JOB) for variable in environment.split(b"\0"))


def foreign_memory_gb(handle: Any) -> float | None:
    """Returns what processes that are no jobs hold; None unless all of it is known."""
    computing = known(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    drawing = known(lambda: pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)) or []
    if computing is None:
        return None
    used = {process.pid: process.usedGpuMemory for process in (*drawing, *computing)}
    foreign = 0
    for pid, size in used.items():
        ours = is_of_a_job(pid)
        if ours is None or (not ours and size is None):
            return None
        foreign += 0 if ours else size
    return round(foreign / GIB, 2)


def is_healthy(handle: Any) -> bool | None:
    """A GPU that fell off the bus, or whose memory had errors that could not be corrected, is not healthy."""
    try:
        pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError_GpuIsLost:
        return False
    except pynvml.NVMLError:
        return None
    uncorrected = (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
    return not known(lambda: pynvml.nvmlDeviceGetTotalEccErrors(handle, *uncorrected))


def health(handle: Any) -> dict[str, Any]:
    return {"foreign_memory_gb": foreign_memory_gb(handle), "healthy": is_healthy(handle)}


def gpu(handle: Any, index: int) -> dict[str, Any]:
    uuids[index] = text(known(lambda: pynvml.nvmlDeviceGetUUID(handle)))
    return {
        "index": index,
        "uuid": uuids[index],
        "name": text(known(lambda: pynvml.nvmlDeviceGetName(handle))),
        "memory_gb": known(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).total / GIB),
        **health(handle),
    }


def sample(handle: Any, index: int) -> dict[str, Any]:
    return {
        "uuid": text(known(lambda: pynvml.nvmlDeviceGetUUID(handle))) or uuids.get(index),
        "utilization": known(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        "memory_used_gb": known(lambda: round(pynvml.nvmlDeviceGetMemoryInfo(handle).used / GIB, 2)),
        "temperature_c": known(lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
        "power_w": known(lambda: round(pynvml.nvmlDeviceGetPowerUsage(handle) / 1000, 1)),
        **health(handle),
    }


def answer(question: str) -> dict[str, Any]:
    """Answers for each GPU. One that the driver does not open any more keeps none of the others from being told of."""
    gpus, broken = [], []
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            except pynvml.NVMLError as error:
                broken.append(f"GPU {index}: {error}")
                if question == "sample":
                    gpus.append({"uuid": uuids.get(index), "healthy": False})
                continue
            gpus.append(sample(handle, index) if question == "sample" else gpu(handle, index))
    except pynvml.NVMLError as error:
        return {"error": str(error)}
    return {"gpus": gpus, "broken": broken}


def main() -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        absent = isinstance(error, pynvml.NVMLError_LibraryNotFound)
        print(json.dumps({"absent": absent, "error": str(error)}), flush=True)
        return
    for line in sys.stdin:
        print(json.dumps(answer(line.strip())), flush=True)


if __name__ == "__main__":
    main()
