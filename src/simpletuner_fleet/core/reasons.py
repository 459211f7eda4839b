"""Reasons in English: whole sentences with named blanks, so that other languages can say the same."""

from typing import Any

from simpletuner_fleet.core.marks import N_

Sentence = tuple[str, dict[str, str]]
"""A sentence with its blanks open, and what belongs into them."""

SENTENCES = {
    "NO_WORKERS": N_("no worker has joined yet"),
    "LABELS_MATCH_NONE": N_("no worker carries the label %(unmatched)s as asked for"),
    "GPU_COUNT_TOO_LARGE": N_("the job needs %(gpus)s GPUs, the largest worker has %(largest)s"),
    "VRAM_TOO_SMALL": N_("no worker has %(gpus)s GPUs with %(min_vram_gb)s GB"),
    "WRONG_ACCELERATOR": N_("no worker has %(gpus)s accelerators of the kind '%(accelerator)s'"),
    "TRAINER_MISSING": N_("no worker can run the trainer '%(trainer)s'"),
    "DATA_TOO_LARGE": N_(
        "the job's datasets have %(data_gb)s GB, the largest data cache of a matching worker %(largest_data_gb)s GB"
    ),
    "ALL_MATCHING_BUSY": N_("all matching workers are busy"),
    "ALL_MATCHING_OFFLINE": N_("all matching workers are offline"),
    "ALL_MATCHING_DRAINING": N_("all matching workers are draining"),
    "ALL_MATCHING_UNUSABLE": N_("the GPUs of all matching workers are unhealthy or used by somebody else"),
    "BEHIND_OTHERS": N_("other jobs are ahead"),
    "RETRY_BACKOFF": N_("waits %(wait_s)s s before the next try"),
    "APPROVAL_REQUIRED": N_("waits for an approval"),
    "DEPENDENCY": N_("waits for %(depends_on)s"),
    "QUOTA_USER": N_("the limit of running jobs is reached"),
    "QUOTA_TEAM": N_("the limit of running jobs is reached"),
    "QUOTA_GLOBAL": N_("the limit of running jobs is reached"),
    "LOCAL_GPU_BUSY": N_("the orchestrator's own GPUs are busy"),
    "LOCAL_NO_GPU": N_("the orchestrator itself has no fitting GPU"),
    "NOT_WAITING": N_("the job is %(state)s"),
}
LABELS_TOGETHER = N_("no worker carries the label combination as asked for")

JOINED = N_("workers have joined")

FIXES = {
    "NO_WORKERS": (N_("Create a worker: simpletuner workers create NAME"),),
    "GPU_COUNT_TOO_LARGE": (
        N_("Adjust --num_processes in the training config: the largest worker has %(largest)s GPUs."),
    ),
    "LABELS_MATCH_NONE": (
        N_("Check for a label mismatch between the job and the workers: simpletuner workers list"),
        N_("Give a worker the label: simpletuner workers set-labels NAME KEY=VALUE"),
    ),
    "VRAM_TOO_SMALL": (N_("Ask for at most %(largest_gb)s GB of GPU memory."),),
    "TRAINER_MISSING": (N_("Install the trainer '%(trainer)s' on a worker and restart its agent."),),
    "DATA_TOO_LARGE": (N_("Start a matching worker with a larger --data-cache-gb."),),
    "ALL_MATCHING_OFFLINE": (N_("Start a matching worker: simpletuner workers list --status offline"),),
    "ALL_MATCHING_DRAINING": (N_("Let a draining worker work again: simpletuner workers resume NAME"),),
    "ALL_MATCHING_UNUSABLE": (
        N_("See with nvidia-smi on the workers who uses the GPUs, or whether they must be reset."),
    ),
    "LOCAL_NO_GPU": (N_("Submit with target 'worker' or 'auto', or start the server with --local."),),
}


def sentence(code: str, params: dict[str, Any]) -> str:
    """The reason in English; other languages have the code and the parameters."""
    text, blanks = reason(code, params)
    return text % blanks


def fixes(code: str, params: dict[str, Any]) -> tuple[str, ...]:
    """What would help, in English."""
    return tuple(text % blanks for text, blanks in steps(code, params))


def reason(code: str, params: dict[str, Any]) -> Sentence:
    if code == "LABELS_MATCH_NONE" and not params["unmatched"]:
        return LABELS_TOGETHER, {}
    return SENTENCES[code], _blanks(params)


def steps(code: str, params: dict[str, Any]) -> tuple[Sentence, ...]:
    return tuple((text, _blanks(params)) for text in FIXES.get(code, ()))


def _blanks(params: dict[str, Any]) -> dict[str, str]:
    told = {name: _shown(name, value) for name, value in params.items()}
    for name, source in (("data_gb", "bytes"), ("largest_data_gb", "largest_bytes")):
        if source in params:
            told[name] = f"{params[source] / 1e9:.1f}"
    return told


def _shown(name: str, value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(str(part) for part in value)
    if isinstance(value, float):
        return f"{value:.0f}" if name.endswith("_s") else f"{value:g}"
    return str(value)
