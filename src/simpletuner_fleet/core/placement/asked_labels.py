"""Writes labels for people: those that a job asks for, and those that a worker has instead."""

from simpletuner_fleet.core.placement.label_match import labels_match
from simpletuner_fleet.core.training.trainer_release import VERSION_LABEL, version_fits, version_numbers
from simpletuner_fleet.core.workers.worker import Worker


def as_asked(key: str, pattern: str) -> str:
    """Returns the label as it is typed: `trainer>=4.3`, `pool=night*`."""
    return f"{key}{pattern}" if version_fits("", pattern) is not None else f"{key}={pattern}"


def as_had(wanted: tuple[tuple[str, str], ...], worker: Worker) -> tuple[str, ...]:
    """Returns the worker's labels that differ from those wanted; labels that it lacks are left out."""
    mine = {key.casefold(): value for key, value in worker.effective_labels.items()}
    return tuple(
        _shown(key, mine[key.casefold()])
        for key, pattern in wanted
        if key.casefold() in mine and not labels_match(((key, pattern),), worker.effective_labels)
    )


def _shown(key: str, value: str) -> str:
    if key.casefold() == VERSION_LABEL and version_numbers(value):
        return f"SimpleTuner {value}"
    return f"{key}={value}"
