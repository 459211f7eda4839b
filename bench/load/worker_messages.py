"""What a real agent puts on the wire for a job that prints nothing: the same headers, the same messages, all fields.

A test compares them with what the real agent sends. Only the first `running` report differs: it tells of a step, which
an agent does in a report of its own as soon as the trainer has made one.
"""

import importlib.metadata
import platform
from typing import Any

import msgspec

from simpletuner_fleet import __version__
from simpletuner_fleet.protocol.data import DataHeld
from simpletuner_fleet.protocol.messages import (
    Accept,
    AuditHead,
    GpuReport,
    GpuSample,
    Heartbeat,
    Register,
    ReportStatus,
    StatusReport,
)

GPU_NAME = "NVIDIA A100-SXM4-80GB"
VRAM_GB = 80.0
FIRST_PROGRESS: dict[str, Any] = {"step": 1, "total": 1}
DATA_LIMIT_BYTES = 64 * 2**30
_encoder = msgspec.json.Encoder()


class WorkerAccount(msgspec.Struct, kw_only=True):
    """A worker that the orchestrator knows and that somebody may act as."""

    name: str
    token: str
    worker_id: str

    @property
    def incarnation(self) -> str:
        return f"00000001.{self.worker_id.encode().hex()[-16:]}"

    @property
    def gpu_uuid(self) -> str:
        return f"GPU-{self.name}"


def headers_of_calls(host: str, token: str) -> str:
    return (
        f"Host: {host}\r\nUser-Agent: simpletuner-fleet/{__version__}\r\nAccept: */*\r\n"
        f"X-Worker-Token: {token}\r\nContent-Type: application/json\r\n"
    )


def headers_of_stream(host: str, token: str) -> str:
    agent = f"python-httpx2/{importlib.metadata.version('httpx2')}"
    return (
        f"Host: {host}\r\nAccept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\nUser-Agent: {agent}\r\n"
        f"X-Worker-Token: {token}\r\nAccept: text/event-stream\r\n"
    )


def registration(account: WorkerAccount, seq: int, tls: str) -> bytes:
    gpu = GpuReport(
        index=0, uuid=account.gpu_uuid, name=GPU_NAME, vram_gb=VRAM_GB, accelerator_type="cuda", unusable=""
    )
    message = Register(
        name=account.name,
        persistent=True,
        gpu_count=1,
        gpu_name=GPU_NAME,
        gpu_vram_gb=VRAM_GB,
        accelerator_type="cuda",
        gpus=[gpu],
        trainers=["command", "demo"],
        saves_on_request=["demo"],
        validates_on_request=["demo"],
        labels={
            "hostname": account.name,
            "os": "linux",
            "arch": platform.machine(),
            "accelerator": "cuda",
            "gpu_type": "a100-sxm4-80gb",
            "isolation": "none",
        },
        version=importlib.metadata.version("simpletuner-fleet"),
        attempts=[],
        home=f"h_{account.worker_id.encode().hex()[-24:]}",
        incarnation=account.incarnation,
        seq=seq,
        data=DataHeld(datasets=[], limit_bytes=DATA_LIMIT_BYTES),
        tls=tls,
    )
    return _encoder.encode(message)


def acceptance(account: WorkerAccount, attempt: int, epoch: int, seq: int) -> bytes:
    message = Accept(epoch=epoch, attempt=attempt, incarnation=account.incarnation, seq=seq)
    return _encoder.encode(message)


def running_report(account: WorkerAccount, attempt: int, epoch: int) -> bytes:
    message = StatusReport(
        status=ReportStatus.RUNNING,
        attempt=attempt,
        epoch=epoch,
        progress=FIRST_PROGRESS,
        incarnation=account.incarnation,
    )
    return _encoder.encode(message)


def completed_report(account: WorkerAccount, attempt: int, epoch: int) -> bytes:
    message = StatusReport(
        status=ReportStatus.COMPLETED,
        attempt=attempt,
        epoch=epoch,
        exit_code=0,
        incarnation=account.incarnation,
    )
    return _encoder.encode(message)


def heartbeat(account: WorkerAccount, audit_head: AuditHead | None) -> bytes:
    sample = GpuSample(
        uuid=account.gpu_uuid, utilization=0.0, memory_used_gb=0.5, temperature_c=35.0, power_w=60.0
    )
    message = Heartbeat(
        worker_id=account.worker_id,
        status="idle",
        attempts=[],
        gpus=[sample],
        incarnation=account.incarnation,
        audit_head=audit_head,
    )
    return _encoder.encode(message)
