"""Lists the columns of a list of jobs, and picks those that the user chose."""

from collections.abc import Sequence

from simpletuner_fleet.languages import N_

COLUMNS = {
    "progress": N_("Progress"),
    "worker": N_("Worker"),
    "owner": N_("Owner"),
    "tags": N_("Tags"),
    "priority": N_("Priority"),
    "attempt": N_("Attempt"),
    "gpus": N_("GPUs"),
    "duration": N_("Duration"),
}
"""All but those that are always there: the job, its status and when."""
USUAL = ("progress", "worker", "owner", "gpus")


def shown_columns(asked: Sequence[str]) -> list[str]:
    """Returns the chosen columns in their order; without a choice, the usual ones."""
    chosen = [name for name in COLUMNS if name in asked]
    return chosen or list(USUAL)
