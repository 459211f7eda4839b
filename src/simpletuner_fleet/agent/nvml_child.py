"""Asks NVML, in a process of its own: a driver that hangs takes this one along and not the agent.

One line in, one line of JSON out: `list` the GPUs, or a `sample` of each. What a GPU does not tell is null.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import pynvml

GIB = 1024**3


def known(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except pynvml.NVMLError:
        return None


def text(value: str | bytes | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def gpu(index: int) -> dict[str, Any]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    return {
        "index": index,
        "uuid": text(known(lambda: pynvml.nvmlDeviceGetUUID(handle))),
        "name": text(known(lambda: pynvml.nvmlDeviceGetName(handle))),
        "memory_gb": known(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).total / GIB),
    }


def sample(index: int) -> dict[str, Any]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    return {
        "uuid": text(known(lambda: pynvml.nvmlDeviceGetUUID(handle))),
        "utilization": known(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        "memory_used_gb": known(lambda: round(pynvml.nvmlDeviceGetMemoryInfo(handle).used / GIB, 2)),
        "temperature_c": known(lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
        "power_w": known(lambda: round(pynvml.nvmlDeviceGetPowerUsage(handle) / 1000, 1)),
    }


def answer(question: str) -> dict[str, Any]:
    tell = sample if question == "sample" else gpu
    try:
        return {"gpus": [tell(index) for index in range(pynvml.nvmlDeviceGetCount())]}
    except pynvml.NVMLError as error:
        return {"error": str(error)}


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
