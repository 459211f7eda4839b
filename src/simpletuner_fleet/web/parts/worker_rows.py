"""Describes a worker in one row: its GPUs and how full they are, what it runs, and how its connection is secured."""

from collections.abc import Mapping

from msgspec import Struct

from simpletuner_fleet.core.jobs.job import Attempt
from simpletuner_fleet.core.workers.gpu_health import OCCUPIED, UNHEALTHY
from simpletuner_fleet.core.workers.worker import Gpu, Worker, WorkerStatus
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.memory.gpu_history import GpuPoint, is_old
from simpletuner_fleet.http.access.networks import is_loopback
from simpletuner_fleet.languages import N_, _, current, ngettext, spoken_number
from simpletuner_fleet.languages.code_texts import groups_text
from simpletuner_fleet.languages.names import blame_name, status_name, worker_type_name
from simpletuner_fleet.queries.worker_details import HeldJob, ListedWorker, WorkerDetails

LABELS_SHOWN = 4
NOBODY: Mapping[str, Attempt] = {}
UNUSABLE = {UNHEALTHY: N_("unhealthy"), OCCUPIED: N_("in use by another program")}


class Latest(Struct, frozen=True):
    """Holds the newest readings of a worker's GPUs, and what tells whether they are old."""

    points: Mapping[str, GpuPoint]
    now: float
    beats_every_s: float

    def old_since(self, uuid: str) -> float | None:
        point = self.points.get(uuid)
        return point.at if point and is_old(point.at, self.now, self.beats_every_s) else None


class GpuRow(Struct, frozen=True, kw_only=True):
    index: int
    uuid: str
    name: str
    vram_gb: float
    """0: not reported."""
    used_gb: float | None
    utilization: float | None
    temperature_c: float | None
    power_w: float | None
    unusable: str
    old_since: float | None
    """When the figures were read, where that is longer ago than usual."""
    said: str
    """Its memory in words, for whoever does not see the bar."""


class TroubleNote(Struct, frozen=True, kw_only=True):
    """Says that a worker is offered nothing for a while, since it could not start what it was given."""

    cause: str
    """In the reader's language; empty where an older server noted none."""
    why: str
    """The worker's own words."""
    until: float


class WorkerRow(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    status: str
    type: str
    note: str
    gpus: list[GpuRow]
    gpu_name: str
    held: tuple[HeldJob, ...]
    labels: list[tuple[str, str]]
    """Those that an administrator set."""
    labels_more: int
    heartbeat: float | None
    version: str
    tls: str
    tls_is_weak: bool


def latest_of(fleet: Fleet, worker_id: str, now: float) -> Latest:
    return Latest(fleet.gpu_history.latest(worker_id), now, fleet.policy.heartbeat_interval_s)


def worker_row(info: ListedWorker, latest: Latest) -> WorkerRow:
    worker = info.worker
    labels = sorted(worker.labels.items())
    return WorkerRow(
        id=worker.id,
        name=worker.name,
        status=info.status,
        type=worker_type_name(current(), worker.worker_type),
        note=_note(info),
        gpus=gpu_rows(worker, latest),
        gpu_name=worker.gpu_name or "",
        held=info.held,
        labels=labels[:LABELS_SHOWN],
        labels_more=max(0, len(labels) - LABELS_SHOWN),
        heartbeat=worker.last_heartbeat,
        version=worker.agent_version,
        tls=tls_text(worker),
        tls_is_weak=tls_is_weak(worker),
    )


def _note(info: ListedWorker) -> str:
    worker = info.worker
    if worker.interruption is not None:
        return _("Its machine is about to be taken away")
    if worker.drain_note or not worker.takes_a_pause:
        return worker.drain_note or pause_text(info)
    return _("It could not start its jobs")


def pause_text(info: ListedWorker | WorkerDetails) -> str:
    """Says that a worker with nothing to do takes no job either; empty where it does."""
    pauses = info.status == WorkerStatus.IDLE and not info.is_open
    return _("It accepts no jobs at the moment.") if pauses else ""


def trouble_note(worker: Worker) -> TroubleNote | None:
    trouble = worker.start_trouble
    if trouble is None or trouble.closed_until is None:
        return None
    return TroubleNote(
        cause=blame_name(current(), trouble.blame) if trouble.blame else "",
        why=trouble.why,
        until=trouble.closed_until,
    )


def gpu_rows(worker: Worker, latest: Latest, holders: Mapping[str, Attempt] = NOBODY) -> list[GpuRow]:
    in_order = sorted(worker.gpus, key=lambda gpu: gpu.index)
    return [_gpu_row(gpu, latest, _used_by(worker, holders.get(gpu.uuid))) for gpu in in_order]


def _used_by(worker: Worker, holder: Attempt | None) -> str:
    """Says which other worker of the same machine uses a GPU, if one does."""
    if holder is None or holder.worker_id == worker.id:
        return ""
    return _("in use by worker %(worker)s", worker=holder.worker_name)


def _gpu_row(gpu: Gpu, latest: Latest, used_by: str) -> GpuRow:
    point = latest.points.get(gpu.uuid)
    used, old_since = point.memory_used_gb if point else None, latest.old_since(gpu.uuid)
    return GpuRow(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        vram_gb=gpu.vram_gb,
        used_gb=used,
        utilization=point.utilization if point else None,
        temperature_c=point.temperature_c if point else None,
        power_w=point.power_w if point else None,
        unusable=used_by or (_(UNUSABLE[gpu.unusable]) if gpu.unusable in UNUSABLE else gpu.unusable),
        old_since=old_since,
        said=_memory_text(gpu, used, is_old=old_since is not None),
    )


def _memory_text(gpu: Gpu, used: float | None, *, is_old: bool) -> str:
    if used is None or not gpu.vram_gb:
        return _("GPU %(index)s: memory in use is not reported", index=gpu.index)
    total = spoken_number(gpu.vram_gb, 0 if gpu.vram_gb == round(gpu.vram_gb) else 1)
    figures = {"index": gpu.index, "used": spoken_number(used, 1), "total": total}
    if is_old:
        return _("GPU %(index)s: %(used)s of %(total)s GB in use when it was last read", **figures)
    return _("GPU %(index)s: %(used)s of %(total)s GB in use", **figures)


def idle_text(worker: Worker, idle: int) -> str:
    """Says how many GPUs stay unused, since the worker takes no more jobs at a time; empty where all are in use."""
    if not idle:
        return ""
    unused = ngettext("%(n)s GPU unused", "%(n)s GPUs unused", idle)
    takes = ngettext(
        "this worker takes one job at a time", "this worker takes %(n)s jobs at a time", worker.max_jobs
    )
    return _("%(unused)s: %(takes)s.", unused=unused, takes=takes)


def status_names() -> dict[str, str]:
    return {status.value: status_name(current(), "worker", status) for status in WorkerStatus}


def tls_text(worker: Worker) -> str:
    """Says how the connection is secured; empty where the worker does not report it, as older agents."""
    match worker.tls:
        case "pinned":
            return _("TLS, pinned")
        case "verified":
            return _("TLS")
        case "unverified":
            return _("TLS not verified")
        case "none":
            return _("No TLS")
        case _:
            return ""


def isolation_text(worker: Worker) -> str:
    """Says how jobs are isolated, by the worker's own report, whatever label an admin set; empty if it reports none."""
    match worker.reported_labels.get("isolation"):
        case "user":
            return _("Separate user for each job")
        case "namespace":
            return _("Sandbox")
        case "landlock":
            return _("Sandbox (Landlock)")
        case "none":
            return _("None: jobs can read the worker's token")
        case _:
            return ""


def job_groups_text(worker: Worker) -> str:
    """Says what control groups do for jobs, by the worker's own report; empty if it reports none."""
    return groups_text(current(), worker.reported_labels)


def is_not_isolated(worker: Worker) -> bool:
    return worker.reported_labels.get("isolation") == "none"


def tls_is_weak(worker: Worker) -> bool:
    """Tells whether somebody in between could read the token, which is impossible on the server's own machine."""
    return worker.tls in ("unverified", "none") and not is_loopback(worker.address)
