"""Describes this machine as every registration reports it."""

from msgspec import Struct

from simpletuner_fleet.core.workers.worker import Gpu
from simpletuner_fleet.protocol.messages import GpuReport, Register


class MachineFacts(Struct, frozen=True, kw_only=True):
    """Holds what every registration says of this machine. It is determined once, at the start."""

    name: str
    version: str
    home: str
    start: int = 0
    """Which start it is of those in its folder."""
    gpus: tuple[Gpu, ...]
    trainers: tuple[str, ...]
    saves_on_request: tuple[str, ...] = ()
    """Those of the trainers that can be asked for a checkpoint."""
    validates_on_request: tuple[str, ...] = ()
    """Those of the trainers that can be asked to validate."""
    labels: dict[str, str]
    price_micros: int | None = None
    """What an hour of one of its GPUs costs, in millionths; None: it does not know."""
    tls: str = ""
    """How it knows the orchestrator; see `protocol.messages.Register`."""

    def registration(self) -> Register:
        """Returns a registration without what changes while the agent runs."""
        gpus = self.gpus
        return Register(
            name=self.name,
            gpu_count=len(gpus),
            gpu_name=gpus[0].name if gpus else None,
            gpu_vram_gb=min((gpu.vram_gb for gpu in gpus), default=None),
            accelerator_type=gpus[0].accelerator_type if gpus else None,
            gpus=[gpu_report(gpu) for gpu in gpus],
            trainers=list(self.trainers),
            saves_on_request=list(self.saves_on_request),
            validates_on_request=list(self.validates_on_request),
            labels=self.labels,
            version=self.version,
            home=self.home,
            tls=self.tls,
            price_micros=self.price_micros,
        )


def gpu_report(gpu: Gpu) -> GpuReport:
    return GpuReport(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        vram_gb=gpu.vram_gb,
        accelerator_type=gpu.accelerator_type,
        unusable=gpu.unusable,
        node=gpu.node,
    )
