"""Makes a trainer's environment: the worker's without its secrets, the bundle's on top, and the attempt's identity."""

import re
from collections.abc import Mapping

from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.contract import NodeSpan, Paths, TrainerError

DECLARED_PREFIX = "GPU-declared-"
CUDA_UUID_PREFIXES = ("GPU-", "MIG-")

_SECRET = re.compile(
    r"SIMPLETUNER_(?:.*(?:TOKEN|SECRET|PASSWORD|CREDENTIAL|API_KEY)|ADMIN|DATABASE_URL|STORAGE_URL)",
    re.IGNORECASE,
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def trainer_environment(order: JobSubmit, paths: Paths, worker: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment. A bundle overrides the worker's; neither can override what identifies the attempt."""
    return {
        **without_secrets(worker),
        **_checked(order.env),
        **_checked(order.secrets or {}),
        **_visible_gpus(order),
        **_identity(order, paths),
        **_meeting_place(paths.span),
    }


def _meeting_place(span: NodeSpan | None) -> dict[str, str]:
    """Returns where nodes meet, by the names that PyTorch's own launchers know."""
    if span is None:
        return {}
    return {
        "MASTER_ADDR": span.address,
        "MASTER_PORT": str(span.port),
        "NNODES": str(span.nodes),
        "NODE_RANK": str(span.rank),
    }


def without_secrets(worker: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in worker.items() if not _SECRET.match(name)}


def gpu_list(order: JobSubmit) -> str:
    """Returns comma-separated UUIDs; indices where the GPUs were declared by hand and have no real one."""
    if order.gpus and not any(uuid == "" or uuid.startswith(DECLARED_PREFIX) for uuid in order.gpus):
        return ",".join(order.gpus)
    return ",".join(str(index) for index in order.gpu_indices)


def _visible_gpus(order: JobSubmit) -> dict[str, str]:
    if order.gpus and not order.gpus[0].startswith(CUDA_UUID_PREFIXES) and order.gpus[0]:
        return {}  # not CUDA: nothing to choose by this variable
    return {"CUDA_VISIBLE_DEVICES": gpu_list(order)}


def _identity(order: JobSubmit, paths: Paths) -> dict[str, str]:
    identity = {
        "SIMPLETUNER_JOB_ID": order.job_id,
        "SIMPLETUNER_ATTEMPT_ID": order.attempt_id,
        "SIMPLETUNER_ATTEMPT": str(order.attempt),
        "SIMPLETUNER_EPOCH": str(order.epoch),
        "SIMPLETUNER_OUTPUT_DIR": str(paths.output_dir),
        "SIMPLETUNER_CONFIG": str(paths.config_file),
        "SIMPLETUNER_NUM_PROCESSES": str(order.num_processes),
        "SIMPLETUNER_RANK_LOG_DIR": str(paths.rank_log_dir),
        "SIMPLETUNER_UPLOAD_ENDPOINT": order.upload_endpoint,
    }
    if isinstance(order.upload_token, str):
        identity["SIMPLETUNER_UPLOAD_TOKEN"] = order.upload_token
    return identity


def _checked(bundle: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in bundle.items():
        if not _NAME.fullmatch(name):
            raise TrainerError(f"env: {name!r} is no name of an environment variable.")
        if "\0" in value:
            raise TrainerError(f"env.{name}: the value holds a NUL character.")
    return bundle
