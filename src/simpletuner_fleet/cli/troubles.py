"""Jobs that are not dispatched, or that failed: what to do, by the stable code of the reason."""

from simpletuner_fleet.client.troubles import TROUBLES
from simpletuner_fleet.languages import N_, _

NO_IDLE_WORKERS = (
    N_("check worker status:  simpletuner workers list"),
    N_("verify workers are connected and IDLE"),
    N_("check for label mismatch between job and workers"),
)
GPU_REQUIREMENTS = (
    N_("the job requires more GPUs than any worker has"),
    N_("adjust --num_processes in the training config"),
)
LABEL_MISMATCH = (
    N_("check for label mismatch between job and workers:  simpletuner workers list"),
    N_("give a worker the label:  simpletuner workers set-labels NAME KEY=VALUE"),
)

ADVICE: dict[str, tuple[str, ...]] = {
    "NO_WORKERS": (
        N_("create a worker and start it:  simpletuner workers create NAME"),
        *NO_IDLE_WORKERS[:2],
    ),
    "LABELS_MATCH_NONE": LABEL_MISMATCH,
    "GPU_COUNT_TOO_LARGE": GPU_REQUIREMENTS,
    "VRAM_TOO_SMALL": (N_("ask for less memory with --min-vram, or add a worker with larger GPUs"),),
    "WRONG_ACCELERATOR": (N_("leave the accelerator out of the config's resources, or add such a worker"),),
    "TRAINER_MISSING": (N_("install the trainer on a worker and restart its agent"),),
    "DATA_TOO_LARGE": (
        N_("start a worker with a larger data cache:  simpletuner worker --data-cache-gb GB"),
    ),
    "ALL_MATCHING_BUSY": NO_IDLE_WORKERS,
    "ALL_MATCHING_OFFLINE": (*NO_IDLE_WORKERS[:2], *TROUBLES["E_HEARTBEAT_TIMEOUT"].next),
    "ALL_MATCHING_DRAINING": (N_("let one work again:  simpletuner workers resume NAME"), NO_IDLE_WORKERS[0]),
    "ALL_MATCHING_UNUSABLE": (
        N_("see on the workers who uses the GPUs, or whether they must be reset:  nvidia-smi"),
    ),
    "BEHIND_OTHERS": (N_("see the queue:  simpletuner jobs list --status queued"),),
    "LOCAL_NO_GPU": (N_("submit with --target worker or --target auto"),),
    "WORKER_LOST": TROUBLES["E_HEARTBEAT_TIMEOUT"].next,
    "TRAINER_FAILED": TROUBLES["E_PROCESS_CRASH"].next,
}


def of_reason(code: str) -> tuple[str, ...]:
    return tuple(_(step) for step in ADVICE.get(code, ()))
