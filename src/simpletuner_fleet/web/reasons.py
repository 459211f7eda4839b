"""Why jobs wait, in a few words, for counting them."""

from simpletuner_fleet.languages import N_, _

NAMES = {
    "NO_WORKERS": N_("no worker has joined"),
    "LABELS_MATCH_NONE": N_("no worker has the labels"),
    "GPU_COUNT_TOO_LARGE": N_("no worker has enough GPUs"),
    "VRAM_TOO_SMALL": N_("no GPU has enough memory"),
    "WRONG_ACCELERATOR": N_("another kind of accelerator"),
    "TRAINER_MISSING": N_("no worker has the trainer"),
    "ALL_MATCHING_BUSY": N_("fitting workers are busy"),
    "ALL_MATCHING_OFFLINE": N_("fitting workers are offline"),
    "ALL_MATCHING_DRAINING": N_("fitting workers are draining"),
    "ALL_MATCHING_UNUSABLE": N_("fitting GPUs are unusable"),
    "BEHIND_OTHERS": N_("others are first"),
    "RETRY_BACKOFF": N_("a pause before the next try"),
    "APPROVAL_REQUIRED": N_("waits for an approval"),
    "DEPENDENCY": N_("waits for another job"),
    "QUOTA_USER": N_("the user's limit is reached"),
    "QUOTA_TEAM": N_("the team's limit is reached"),
    "QUOTA_GLOBAL": N_("the fleet's limit is reached"),
    "LOCAL_GPU_BUSY": N_("the server's own GPUs are busy"),
    "LOCAL_NO_GPU": N_("the server has no fitting GPU"),
    "NOT_WAITING": N_("starts now"),
}


def reason_name(code: str) -> str:
    return _(NAMES[code]) if code in NAMES else code
