"""Writes down how an attempt's own GPUs were doing, as lines that are sent like the trainer's own numbers."""

import json
import logging
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from simpletuner_fleet.core.training.metrics import gpu_key
from simpletuner_fleet.protocol.messages import GpuSample, JobSubmit

log = logging.getLogger(__name__)

NOT_WITHIN_S = 9.0
"""Heartbeats may be far more frequent than anybody wants points."""
NAME = "gpu-metrics.jsonl"
SENT = "gpu-metrics-sent.json"


class GpuJournal:
    def __init__(self, offer: JobSubmit, path: Path, clock: Callable[[], float] = time.time) -> None:
        # On several nodes two GPUs have the same index: there they are counted through.
        indices = offer.gpu_indices if offer.nodes == 1 else range(len(offer.gpus))
        self._indices = dict(zip(offer.gpus, indices, strict=False))
        self._job_id, self._path, self._clock = offer.job_id, path, clock
        self._noted_at: dict[int, float] = {}
        """By the GPU's index."""

    def note(self, samples: Sequence[GpuSample], step: int) -> None:
        """Writes a line for each GPU that tells something, with the time of its reading.

        May wait for the disk: call it in a thread.
        """
        now = self._clock()
        values_by_gpu = {
            index: (round(now - (one.age_s or 0.0), 3), values_of(index, one))
            for one in samples
            if (index := self._index(one)) is not None
        }
        news = {
            index: (at, values)
            for index, (at, values) in values_by_gpu.items()
            if values and not self._is_noted(index, at)
        }
        lines = [json.dumps({"step": step, "time": at, **values}) for at, values in news.values()]
        if not lines:
            return
        self._noted_at |= {index: at for index, (at, _) in news.items()}
        try:
            with self._path.open("a", encoding="ascii") as file:
                file.write("".join(f"{line}\n" for line in lines))
        except OSError as error:
            log.debug("job %s: how its GPUs are doing is not written down: %s", self._job_id, error)

    def _is_noted(self, index: int, at: float) -> bool:
        noted_at = self._noted_at.get(index, -math.inf)
        return noted_at <= at < noted_at + NOT_WITHIN_S

    def _index(self, sample: GpuSample) -> int | None:
        return self._indices.get(sample.uuid)


def values_of(index: int, sample: GpuSample) -> dict[str, float]:
    """Returns the measured values, and leaves out what the sample does not tell: a missing value is not 0."""
    measures = {
        "utilization": sample.utilization,
        "memory_gb": sample.memory_used_gb,
        "temperature_c": sample.temperature_c,
        "power_w": sample.power_w,
    }
    return {
        gpu_key(index, measure): float(value)
        for measure, value in measures.items()
        if value is not None and math.isfinite(value)
    }
