"""Reads Jobs, pods and events as far as they are needed, and explains their state to people.

This module is pure: it does no I/O.
"""

from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from simpletuner_fleet.providers.kubernetes.job import MACHINE, QUEUE

Item = TypeVar("Item")

ENDED = frozenset({"Complete", "Failed"})
USUAL = frozenset({"", "ContainerCreating", "PodInitializing"})


class _Metadata(Struct, frozen=True, rename="camel"):
    name: str
    uid: str = ""
    labels: dict[str, str] = {}
    deletion_timestamp: str | None = None


class _Condition(Struct, frozen=True):
    type: str
    status: str
    reason: str = ""
    message: str = ""


class _JobSpec(Struct, frozen=True):
    suspend: bool = False


class _JobStatus(Struct, frozen=True):
    active: int = 0
    conditions: list[_Condition] = []


class KubernetesJob(Struct, frozen=True):
    metadata: _Metadata
    spec: _JobSpec = _JobSpec()
    status: _JobStatus = _JobStatus()

    @property
    def end(self) -> _Condition | None:
        for condition in self.status.conditions:
            if condition.type in ENDED and condition.status == "True":
                return condition
        return None

    @property
    def runs(self) -> bool:
        return self.end is None and self.metadata.deletion_timestamp is None

    @property
    def lacks_pod(self) -> bool:
        return self.runs and not self.spec.suspend and not self.status.active


class _Waiting(Struct, frozen=True):
    reason: str = ""
    message: str = ""


class _Terminated(Struct, frozen=True, rename="camel"):
    exit_code: int = 0
    reason: str = ""
    message: str = ""


class _ContainerState(Struct, frozen=True):
    waiting: _Waiting | None = None
    terminated: _Terminated | None = None


class _ContainerStatus(Struct, frozen=True):
    state: _ContainerState = _ContainerState()


class _PodStatus(Struct, frozen=True, rename="camel"):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: list[_Condition] = []
    container_statuses: list[_ContainerStatus] = []


class KubernetesPod(Struct, frozen=True):
    metadata: _Metadata
    status: _PodStatus = _PodStatus()

    @property
    def machine(self) -> str:
        return self.metadata.labels.get(MACHINE, "")


class _Regarding(Struct, frozen=True):
    name: str = ""


class KubernetesEvent(Struct, frozen=True, rename="camel"):
    involved_object: _Regarding = _Regarding()
    reason: str = ""
    message: str = ""


class _ListMetadata(Struct, frozen=True, rename={"next": "continue"}):
    next: str = ""


class Listing(Struct, Generic[Item], frozen=True):
    """Holds one page of a list of Kubernetes objects."""

    items: list[Item]
    metadata: _ListMetadata = _ListMetadata()


JOB = msgspec.json.Decoder(KubernetesJob)
JOBS = msgspec.json.Decoder(Listing[KubernetesJob])
PODS = msgspec.json.Decoder(Listing[KubernetesPod])
EVENTS = msgspec.json.Decoder(Listing[KubernetesEvent])


def note_of_pod(pod: KubernetesPod) -> str:
    """Returns what keeps a pod from running, or how it ended; an empty text where all is as usual."""
    status = pod.status
    reasons = [(status.reason, status.message)] if status.reason else []
    for container in status.container_statuses:
        waiting, ended = container.state.waiting, container.state.terminated
        if waiting is not None and waiting.reason not in USUAL:
            reasons.append((waiting.reason, waiting.message))
        if ended is not None and ended.exit_code:
            reasons.append((f"{ended.reason or 'Error'} (exit {ended.exit_code})", ended.message))
    if not reasons:
        reasons = [
            (condition.reason, condition.message)
            for condition in status.conditions
            if condition.type == "PodScheduled" and condition.status == "False"
        ]
    return "; ".join(_sentence(reason, message) for reason, message in reasons)


def note_of_job(job: KubernetesJob) -> str:
    end = job.end
    if end is not None and end.type == "Failed":
        return _sentence(end.reason, end.message)
    if job.spec.suspend and job.runs:
        queue = job.metadata.labels.get(QUEUE, "")
        return f"Suspended: the queue {queue} has not admitted it yet" if queue else "Suspended"
    return ""


def note_of_event(event: KubernetesEvent) -> str:
    return _sentence(event.reason, event.message)


def _sentence(reason: str, message: str) -> str:
    return ": ".join(part for part in (reason, message.strip()) if part)
