"""Checks what a worker reports of itself, and keeps it apart from what the administrator says of it."""

from typing import Any

from msgspec.structs import replace

from simpletuner_fleet.core.configs.datasets import MAX_HELD
from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.jobs.submitting.submission import check_labels
from simpletuner_fleet.core.money.amounts import MAX_MICROS
from simpletuner_fleet.core.policy import MAX_GPUS_PER_JOB
from simpletuner_fleet.core.training.checkpoint import SHA256
from simpletuner_fleet.core.workers.gpu_health import KNOWN
from simpletuner_fleet.core.workers.worker import LEGACY_TRAINERS, TLS_KINDS, Gpu, Worker, WorkerType
from simpletuner_fleet.protocol.data import DataHeld
from simpletuner_fleet.protocol.messages import GpuReport, Register

MAX_JOBS_PER_WORKER = 1024
MAX_TRAINERS = 64
MOST_BYTES = 2**60


def with_facts(worker: Worker, message: Register) -> Worker:
    """Returns the worker with what it reports.

    The admin's labels and choices stay; reported ones fill only the gaps.
    """
    trainers = tuple(dict.fromkeys(message.trainers)) if message.trainers is not None else LEGACY_TRAINERS
    if len(trainers) > MAX_TRAINERS:
        raise Invalid(f"A worker names at most {MAX_TRAINERS} trainers.", path="$.trainers")
    if not 1 <= message.max_jobs <= MAX_JOBS_PER_WORKER:
        raise Invalid(f"max_jobs is between 1 and {MAX_JOBS_PER_WORKER}.", path="$.max_jobs")
    gpus = _as_last_seen(worker, message, reported_gpus(worker.id, message))
    return replace(
        worker,
        reported_type=WorkerType.PERSISTENT if message.persistent else WorkerType.EPHEMERAL,
        reported_labels=_reported_labels(message, gpus),
        gpus=gpus,
        trainers=trainers,
        saves_on_request=_of_its_own(message.saves_on_request, trainers),
        validates_on_request=_of_its_own(message.validates_on_request, trainers),
        max_jobs=1 if message.legacy else message.max_jobs,
        legacy=message.legacy,
        reported_price_micros=_reported_price(message),
        agent_version=message.version[:100],
        tls=message.tls if message.tls in TLS_KINDS else "",
        **held_data(message.data),
    )


def refuse_other_trainer(worker: Worker, trainer: str) -> None:
    """Raises Invalid where a worker tells of a trainer that it has not registered."""
    if trainer not in worker.trainers:
        raise Invalid(f"This worker has registered no trainer '{trainer}'.", path="$.trainer")


def _of_its_own(names: list[str] | None, trainers: tuple[str, ...]) -> tuple[str, ...] | None:
    """Leaves out trainers that the worker does not have: they cannot be asked."""
    if names is None:
        return None
    named = set(names)
    return tuple(trainer for trainer in trainers if trainer in named)


def _reported_price(message: Register) -> int | None:
    """Returns the price. An absurd one counts as none: it must not keep a worker from its work."""
    price = message.price_micros
    return price if price is not None and price <= MAX_MICROS else None


def held_data(held: DataHeld | None) -> dict[str, Any]:
    """Returns what an agent reports of its cache. One that reports nothing has none."""
    if held is None:
        return {"datasets": (), "data_bytes": 0, "data_limit_bytes": 0}
    ids = (dataset_id for dataset_id in held.datasets if SHA256.fullmatch(dataset_id))
    return {
        "datasets": tuple(dict.fromkeys(ids))[:MAX_HELD],
        "data_bytes": min(max(0, held.bytes), MOST_BYTES),
        "data_limit_bytes": min(max(0, held.limit_bytes), MOST_BYTES),
    }


def _as_last_seen(worker: Worker, message: Register, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Keeps the known health of GPUs for the same process.

    It checks them only once before it registers; its later heartbeats are more recent.
    """
    if message.incarnation != worker.incarnation or not message.incarnation:
        return gpus
    known = {gpu.uuid: gpu.unusable for gpu in worker.gpus}
    return tuple(replace(gpu, unusable=known.get(gpu.uuid, gpu.unusable)) for gpu in gpus)


def reported_gpus(worker_id: str, message: Register) -> tuple[Gpu, ...]:
    if message.gpus is not None:
        _check_count(len(message.gpus))
        gpus = tuple(_gpu(worker_id, report, message) for report in message.gpus)
        if len({gpu.uuid for gpu in gpus}) != len(gpus):
            raise Invalid("Two GPUs have the same uuid.", path="$.gpus")
        return _by_node(gpus)
    info = message.gpu_info
    count = message.gpu_count if message.gpu_count is not None else (info.count if info else None)
    name = message.gpu_name or (info.name if info else None) or ""
    vram = message.gpu_vram_gb if message.gpu_vram_gb is not None else (info.vram_gb if info else None)
    kind = message.accelerator_type or (info.accelerator if info else None) or ""
    if count is None:
        count = 1 if name and kind.lower() not in ("", "cpu", "none") else 0
    _check_count(count)
    return tuple(
        Gpu(
            index=at,
            uuid=_made_up_uuid(worker_id, at),
            name=name[:200],
            vram_gb=_vram(vram),
            accelerator_type=_kind(kind),
        )
        for at in range(count)
    )


def _by_node(gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Returns the GPUs by node.

    Raises Invalid unless nodes are counted from 0 and each has a GPU: placement relies on it.
    """
    ordered = tuple(sorted(gpus, key=lambda gpu: gpu.node))
    nodes = sorted({gpu.node for gpu in ordered})
    if nodes != list(range(len(nodes))):
        raise Invalid("The nodes of a worker are counted from 0, and each has a GPU.", path="$.gpus")
    return ordered


def _made_up_uuid(worker_id: str, index: int) -> str:
    """Returns an identity for a GPU whose agent reports none; no other worker's GPU has the same."""
    return f"GPU-{worker_id}-{index}"


def _gpu(worker_id: str, report: GpuReport, message: Register) -> Gpu:
    return Gpu(
        index=report.index,
        uuid=report.uuid[:100] or _made_up_uuid(worker_id, report.index),
        name=(report.name or message.gpu_name or "")[:200],
        vram_gb=_vram(report.vram_gb if report.vram_gb is not None else message.gpu_vram_gb),
        accelerator_type=_kind(report.accelerator_type or message.accelerator_type or "cuda"),
        unusable=report.unusable if report.unusable in KNOWN else "",
        node=report.node,
    )


def _check_count(count: int) -> None:
    if not 0 <= count <= MAX_GPUS_PER_JOB:
        raise Invalid(f"A worker has 0 to {MAX_GPUS_PER_JOB} GPUs.", path="$.gpu_count")


def _vram(reported: float | None) -> float:
    """Returns the memory. A value that is negative, not finite or absurdly large counts as unknown."""
    if reported is None or not 0 <= reported < 1e6:
        return 0.0
    return float(reported)


def _kind(reported: str) -> str:
    return (reported or "cuda").lower()[:40]


def _reported_labels(message: Register, gpus: tuple[Gpu, ...]) -> dict[str, str]:
    labels = dict(check_labels(message.labels, "$.labels"))
    if gpus:
        labels.setdefault("gpu_type", gpus[0].name.lower().removeprefix("nvidia ").replace(" ", "-"))
        labels.setdefault("accelerator", gpus[0].accelerator_type)
    return labels
