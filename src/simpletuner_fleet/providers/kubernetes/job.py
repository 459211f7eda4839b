"""Builds what Kubernetes is asked to create: the Job of one machine, and the Secret with its one-time token.

This module is pure: it does no I/O.
"""

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from simpletuner_fleet.providers.forms import insist
from simpletuner_fleet.providers.settings import SettingsReader

MANAGED_BY, OURS = "app.kubernetes.io/managed-by", "simpletuner-fleet"
ORCHESTRATOR, MACHINE = "simpletuner-fleet/orchestrator", "simpletuner-fleet/machine"
QUEUE = "kueue.x-k8s.io/queue-name"
CONTAINER = "worker"
HOME = "/var/lib/simpletuner-worker"
TOKEN_VARIABLE, TOKEN_KEY = "SIMPLETUNER_WORKER_TOKEN", "token"
NODES_VARIABLE, NODES_KEY = "SIMPLETUNER_NODE_SECRET", "nodes"
NODE_PORT = 7790
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
IMAGE_USER = 10001
"""The user of our own image."""
GRACE_S = 180
"""So long a worker that is ended may save and hand back its job."""
LIFE_HOURS = 168
KEPT_S = 86_400
"""So long an ended Job stays where nobody is left to delete it."""
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

DNS_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_PART = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_DOMAIN = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
LABEL_KEY = re.compile(rf"({_DOMAIN}/)?{_PART}")
LABEL_VALUE = re.compile(rf"({_PART})?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,511}")
_PROGRAM = re.compile(r"[A-Za-z0-9_./+-]+")


class PodSettings(Struct, frozen=True, kw_only=True):
    """Holds the settings of a pool for its pods."""

    image: str
    command: str
    pull_secret: str
    service_account: str
    priority_class: str
    runtime_class: str
    queue: str
    node_selector: dict[str, str]
    tolerations: list[dict[str, str]]
    gpus: int
    """Of all nodes together."""
    nodes: int
    gpu_resource: str
    cpus: float
    memory_gb: float
    disk_gb: float
    shm_gb: float
    user: int
    grace_s: int
    life_s: int


def read_pod_settings(settings: SettingsReader, gpus: int, nodes: int, boot_s: float) -> PodSettings:
    life_s = boot_s + settings.number("max_hours", LIFE_HOURS) * 3600.0
    pod = PodSettings(
        image=settings.word("image"),
        command=settings.word("command", "simpletuner"),
        pull_secret=settings.word("image_pull_secret"),
        service_account=settings.word("service_account"),
        priority_class=settings.word("priority_class"),
        runtime_class=settings.word("runtime_class"),
        queue=settings.word("queue"),
        node_selector=_pairs(settings.word("node_selector")),
        tolerations=[_toleration(word) for word in _words(settings.word("tolerations"))],
        gpus=gpus,
        nodes=nodes,
        gpu_resource=settings.word("gpu_resource", "nvidia.com/gpu"),
        cpus=settings.number("cpus", 0),
        memory_gb=settings.number("memory_gb", 0),
        disk_gb=settings.number("disk_gb", 0),
        shm_gb=settings.number("shm_gb", 0),
        user=int(settings.number("run_as", IMAGE_USER)),
        grace_s=int(settings.number("grace_s", GRACE_S)),
        life_s=int(life_s),
    )
    insist("image", bool(_IMAGE.fullmatch(pod.image)), "IMAGE[:TAG]")
    insist("command", bool(_PROGRAM.fullmatch(pod.command)), "/PATH/OF/PROGRAM")
    insist("gpu_resource", bool(LABEL_KEY.fullmatch(pod.gpu_resource)), "DOMAIN/NAME")
    insist("queue", bool(LABEL_VALUE.fullmatch(pod.queue)), "NAME")
    named = {
        "image_pull_secret": pod.pull_secret,
        "service_account": pod.service_account,
        "priority_class": pod.priority_class,
        "runtime_class": pod.runtime_class,
    }
    for name, value in named.items():
        insist(name, not value or bool(re.fullmatch(_DOMAIN, value)), "NAME")
    return pod


def _words(text: str) -> list[str]:
    return [word for part in text.split(",") if (word := part.strip())]


def _pairs(text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for word in _words(text):
        key, sign, value = word.partition("=")
        fits = sign and LABEL_KEY.fullmatch(key) and LABEL_VALUE.fullmatch(value)
        insist("node_selector", bool(fits), "KEY=VALUE,…")
        pairs[key] = value
    return pairs


def _toleration(word: str) -> dict[str, str]:
    taint, _, effect = word.partition(":")
    key, sign, value = taint.partition("=")
    fits = LABEL_KEY.fullmatch(key) and LABEL_VALUE.fullmatch(value) and effect in ("", *EFFECTS)
    insist("tolerations", bool(fits), "KEY[=VALUE][:EFFECT],…")
    operator = {"operator": "Equal", "value": value} if sign else {"operator": "Exists"}
    return {"key": key, **operator, **({"effect": effect} if effect else {})}


def job_of(name: str, pod: PodSettings, environment: Mapping[str, str]) -> dict[str, Any]:
    """Returns a Job that runs its pod once: whatever ends it ends the machine.

    A machine of several nodes has a pod for each: the one with index 0 is the worker, the others follow it.
    """
    labels = labels_of(name)
    indexed = {"completionMode": "Indexed"} if pod.nodes > 1 else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {**labels, **({QUEUE: pod.queue} if pod.queue else {})}},
        "spec": {
            "parallelism": pod.nodes,
            "completions": pod.nodes,
            **indexed,
            "backoffLimit": 0,
            "activeDeadlineSeconds": pod.life_s,
            "ttlSecondsAfterFinished": KEPT_S,
            "suspend": bool(pod.queue),  # Kueue lets it go once there is room
            "template": {"metadata": {"labels": labels}, "spec": _pod(name, pod, environment)},
        },
    }


def secret_of(name: str, values: Mapping[str, str], job_uid: str) -> dict[str, Any]:
    """Returns a Secret that Kubernetes deletes with its Job."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _owned(name, job_uid),
        "type": "Opaque",
        "immutable": True,
        "stringData": dict(values),
    }


def service_of(name: str, job_uid: str) -> dict[str, Any]:
    """Returns the Service that gives a machine's pods names by which they find each other.

    Kubernetes deletes it with its Job, too.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _owned(name, job_uid),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {MACHINE: name},
            "ports": [{"name": "nodes", "port": NODE_PORT}],
        },
    }


def _owned(name: str, job_uid: str) -> dict[str, Any]:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job_uid}
    return {"name": name, "labels": labels_of(name), "ownerReferences": [owner]}


def labels_of(name: str) -> dict[str, str]:
    """Returns the labels of a machine's objects. The fleet's id is the second part of each of our names."""
    return {MANAGED_BY: OURS, ORCHESTRATOR: name.split("-")[1], MACHINE: name}


def _pod(name: str, pod: PodSettings, environment: Mapping[str, str]) -> dict[str, Any]:
    user = {"runAsUser": pod.user, "runAsGroup": pod.user, "fsGroup": pod.user}
    chosen = {
        "nodeSelector": pod.node_selector,
        "tolerations": pod.tolerations,
        "serviceAccountName": pod.service_account,
        "priorityClassName": pod.priority_class,
        "runtimeClassName": pod.runtime_class,
        "imagePullSecrets": [{"name": pod.pull_secret}] if pod.pull_secret else [],
    }
    return {
        **({"subdomain": name} if pod.nodes > 1 else {}),
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "shareProcessNamespace": True,  # so that somebody takes in the processes which a worker leaves behind
        "terminationGracePeriodSeconds": pod.grace_s,
        "securityContext": {
            "runAsNonRoot": pod.user != 0,
            **user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(name, pod, environment)],
        "volumes": [
            {"name": "home", "emptyDir": {"sizeLimit": _gigabytes(pod.disk_gb)} if pod.disk_gb else {}},
            {
                "name": "shm",
                "emptyDir": {
                    "medium": "Memory",
                    **({"sizeLimit": _gigabytes(pod.shm_gb)} if pod.shm_gb else {}),
                },
            },
        ],
        **{field: value for field, value in chosen.items() if value},
    }


def _container(name: str, pod: PodSettings, environment: Mapping[str, str]) -> dict[str, Any]:
    plain = {"HOME": HOME, "SIMPLETUNER_WORK_DIR": f"{HOME}/state", **environment}
    plain.pop(TOKEN_VARIABLE, None)
    token = {"secretKeyRef": {"name": name, "key": TOKEN_KEY}}
    return {
        "name": CONTAINER,
        "image": pod.image,
        "command": [pod.command, "worker"],
        "env": [
            *({"name": variable, "value": value} for variable, value in sorted(plain.items())),
            {"name": TOKEN_VARIABLE, "valueFrom": token},
            *(_of_nodes(name, pod.nodes) if pod.nodes > 1 else ()),
        ],
        "resources": _resources(pod),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "home", "mountPath": HOME}, {"name": "shm", "mountPath": "/dev/shm"}],
    }


def _of_nodes(name: str, nodes: int) -> list[dict[str, Any]]:
    """Returns the variables for a machine of several nodes.

    All its pods get the same; only their index says which of them is the first.
    """
    return [
        {"name": "SIMPLETUNER_WORKER_NODES", "value": str(nodes)},
        {"name": "SIMPLETUNER_NODE_OF", "value": f"{name}-0.{name}:{NODE_PORT}"},
        {"name": "SIMPLETUNER_NODE_INDEX", "valueFrom": {"fieldRef": {"fieldPath": INDEX}}},
        {"name": NODES_VARIABLE, "valueFrom": {"secretKeyRef": {"name": name, "key": NODES_KEY}}},
    ]


def _resources(pod: PodSettings) -> dict[str, dict[str, str]]:
    limits = {pod.gpu_resource: str(pod.gpus // pod.nodes)} if pod.gpus else {}
    requests = dict(limits)
    if pod.memory_gb:
        limits["memory"] = requests["memory"] = _gigabytes(pod.memory_gb)
    if pod.cpus:
        requests["cpu"] = f"{round(pod.cpus * 1000)}m"
    if pod.disk_gb:
        requests["ephemeral-storage"] = _gigabytes(pod.disk_gb)
    return {"limits": limits, "requests": requests}


def _gigabytes(amount: float) -> str:
    return f"{round(amount * 1000)}M"
