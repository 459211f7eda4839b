"""Defines what can be wrong on a worker's machine: the part of the family in errors.py that only workers raise."""

from simpletuner_fleet.core.errors import FleetError


class StateDirError(FleetError):
    """The worker's state folder is not usable."""

    code = "state_dir"


class StateDirInUse(StateDirError):
    """Another worker is using this state folder."""

    code = "state_dir_in_use"
    next_step = "Stop that worker, or give this one a different --name or --work-dir."


class TokenFileError(FleetError):
    """The file that should hold the worker's token holds none."""

    code = "token_file"
    next_step = (
        "Name the file with --worker-token-file, or give the token as SIMPLETUNER_WORKER_TOKEN. "
        "A lost token is replaced with: simpletuner workers rotate-token NAME."
    )


class InventoryError(FleetError):
    """SIMPLETUNER_GPU_INVENTORY is not valid."""

    code = "gpu_inventory"
    next_step = 'Write it as [{"name": "NVIDIA A100-SXM4-80GB", "vram_gb": 80, "count": 2}], or @FILE.'


class NoSuchGpu(FleetError):
    """--gpus names a GPU that this machine does not have."""

    code = "no_such_gpu"


class NodeSecretError(FleetError):
    """The secret that the nodes of this worker share is missing or is not valid."""

    code = "node_secret"
    next_step = (
        "Make one and copy it to all nodes: openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes "
        "-days 3650 -subj /CN=worker -keyout nodes.pem -out nodes.crt && cat nodes.crt >> nodes.pem; "
        "then --node-secret-file nodes.pem."
    )


class NotANode(FleetError):
    """The first node does not take this one in."""

    code = "not_a_node"


class IsolationUnavailable(FleetError):
    """Isolation was requested, but this machine does not support it."""

    code = "isolation_unavailable"
    next_step = (
        "Run the worker as root, or where namespaces or Landlock are allowed; or accept the risk: "
        "--isolation none."
    )


class JobLimitUnavailable(FleetError):
    """A limit for jobs was asked for that this machine does not let the worker hold."""

    code = "job_limit_unavailable"
    next_step = (
        "Install the worker with 'simpletuner service install worker', or start it in a group of its own: "
        "systemd-run --scope -p Delegate=yes simpletuner worker …; or leave the limit out."
    )


class JobPathError(FleetError):
    """--job-path names a path that does not exist or that no job may access."""

    code = "job_path"
    next_step = "Write it as --job-path FOLDER:ro or --job-path FOLDER:rw."


class PathNotGranted(FleetError):
    """A config names a path on the worker that jobs may not access; the message says which."""

    code = "path_not_granted"


class CacheInUse(FleetError):
    """Another worker is using this data cache."""

    code = "data_cache_in_use"
    next_step = "Give each worker on this machine its own --data-cache-dir."


class CacheUnusable(FleetError):
    """The data cache is not usable."""

    code = "data_cache"
    next_step = "Choose another folder with --data-cache-dir."


class CacheFull(FleetError):
    """The dataset does not fit on this worker."""

    code = "data_no_room"


class CacheTooSmall(CacheFull):
    """The dataset is larger than the data cache of this worker."""


class DataFailed(FleetError):
    """The data is unavailable here: the attempt does not start."""

    code = "data_failed"


class ResumeFailed(FleetError):
    """The checkpoint to resume from is unavailable: the attempt does not start, and never from the beginning."""

    code = "resume_failed"


class ResumeUnreadable(FleetError):
    """The orchestrator's order makes no sense: no other worker could follow it either."""

    code = "resume_unreadable"


class ShimUnavailable(FleetError):
    """The trainer's supervisor could not be started."""

    code = "shim_unavailable"
    next_step = "Check the process and memory limits of this machine, and that its Python still works."


class SpoolFull(FleetError):
    """Too many reports are waiting for the orchestrator."""

    code = "spool_full"


class TrainerPythonMissing(FleetError):
    """--trainer-python does not name a working Python."""

    code = "E_TRAINER_PYTHON"
