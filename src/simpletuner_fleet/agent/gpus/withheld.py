"""Withholds GPUs on which something of an attempt lives that is over for the orchestrator."""

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from simpletuner_fleet.protocol.messages import GpuSample


class WithheldGpus:
    """Has heartbeats tell of such a GPU as unhealthy, which no job is given, until nothing lives on it."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        """Which the orchestrator may have noted as unhealthy for this reason alone."""

    def samples(self, seen: Sequence[GpuSample], lived_on: Collection[str]) -> list[GpuSample]:
        """Returns what to tell of all GPUs; `seen` is how they are doing, and need not name each."""
        self._told |= set(lived_on)
        samples = {sample.uuid: sample for sample in seen}
        for uuid in sorted(self._told):
            sample = samples.get(uuid) or GpuSample(uuid=uuid)
            # What nobody measures is healthy as before, once nothing lives there.
            healthy = False if uuid in lived_on else sample.healthy is not False
            samples[uuid] = replace(sample, healthy=healthy)
        return list(samples.values())

    def heard(self, lived_on: Collection[str]) -> None:
        """Notes that the orchestrator has answered to what was told while something lived on these."""
        self._told = set(lived_on)
