"""What can be wrong on a worker's machine: the part of the family in errors.py that only workers raise."""

from simpletuner_fleet.core.errors import FleetError


class StateDirError(FleetError):
    """The worker's state folder cannot be used."""

    code = "state_dir"


class StateDirInUse(StateDirError):
    """Another worker is using this state folder."""

    code = "state_dir_in_use"
    next_step = "Stop that worker, or give this one another --name or --work-dir."


class InventoryError(FleetError):
    """SIMPLETUNER_GPU_INVENTORY cannot be read."""

    code = "gpu_inventory"
    next_step = 'Write it as [{"name": "NVIDIA A100-SXM4-80GB", "vram_gb": 80, "count": 2}], or @FILE.'


class NoSuchGpu(FleetError):
    """--gpus names a GPU that this machine does not have."""

    code = "no_such_gpu"


class IsolationUnavailable(FleetError):
    """This machine allows no wall around jobs, and one was asked for."""

    code = "isolation_unavailable"
    next_step = (
        "Run the worker as root or where namespaces or Landlock are allowed; or accept it: --isolation none."
    )


class JobLimitUnavailable(FleetError):
    """A limit for jobs was asked for that this machine does not let the worker hold."""

    code = "job_limit_unavailable"
    next_step = (
        "Install the worker with 'simpletuner service install worker', or start it in a group of its own: "
        "systemd-run --scope -p Delegate=yes simpletuner worker …; or leave the limit out."
    )


class JobPathError(FleetError):
    """--job-path names what is not there, or what no job may see."""

    code = "job_path"
    next_step = "Write it as --job-path FOLDER:ro or --job-path FOLDER:rw."


class PathNotGranted(FleetError):
    """A config names what is on the worker and not for jobs; the message says which, and how its owner grants it."""

    code = "path_not_granted"


class CacheInUse(FleetError):
    """Another worker uses this data cache."""

    code = "data_cache_in_use"
    next_step = "Give each worker of this machine a --data-cache-dir of its own."


class CacheUnusable(FleetError):
    """The data cache cannot be used."""

    code = "data_cache"
    next_step = "Name another folder with --data-cache-dir."


class CacheFull(FleetError):
    """The dataset does not fit on this worker."""

    code = "data_no_room"


class DataFailed(FleetError):
    """The data cannot be had here: the attempt does not start."""

    code = "data_failed"


class ResumeFailed(FleetError):
    """The checkpoint to go on from cannot be had: the attempt does not start, least of all from the beginning."""

    code = "resume_failed"


class ResumeUnreadable(FleetError):
    """The orchestrator's order makes no sense: no other worker could follow it either."""

    code = "resume_unreadable"


class ShimUnavailable(FleetError):
    """The trainer's guardian could not be started."""

    code = "shim_unavailable"
    next_step = "Check the process and memory limits of this machine, and that its Python still works."


class SpoolFull(FleetError):
    """Too many reports wait for the orchestrator."""

    code = "spool_full"


class TrainerPythonMissing(FleetError):
    """What --trainer-python names cannot run anything."""

    code = "E_TRAINER_PYTHON"
