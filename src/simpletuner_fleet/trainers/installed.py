"""Finds out at the start which SimpleTuner is installed here, for people and for the orchestrator."""

import logging
import sys
from collections.abc import Mapping
from pathlib import Path

from simpletuner_fleet.core.training.trainer_release import VERSION_LABEL
from simpletuner_fleet.trainers.contract import Answers
from simpletuner_fleet.trainers.finding import LookedAt, checked_python, find_trainer_python
from simpletuner_fleet.trainers.registry import Registry

log = logging.getLogger(__name__)

INSTALL_LINE = (
    "python3 -m venv ~/SimpleTuner/.venv && ~/SimpleTuner/.venv/bin/pip install 'simpletuner[cuda]'"
)
"""Where a worker finds it by itself."""
MOST_TOLD = 8


def trainers_for(named: str | None, environment: Mapping[str, str]) -> Registry:
    """Loads them with the Python named, or the one found; raises TrainerPythonMissing where the named one is none.

    May take seconds: call it in a thread.
    """
    if named:
        return Registry.load(trainer_python=checked_python(named), environment=environment)
    answers: Answers = {}
    python, looked_at = find_trainer_python(environment, sys.executable, Path.cwd(), answers)
    return Registry.load(trainer_python=python, environment=environment, looked_at=looked_at, answers=answers)


def version_label(registry: Registry) -> dict[str, str]:
    """Returns a label, so that a job can ask for a version and people see it."""
    version = registry.simpletuner().version
    return {VERSION_LABEL: version} if version else {}


def describe(registry: Registry) -> list[str]:
    """Returns a line for each thing worth knowing, the most important one first."""
    if not registry.has_simpletuner():
        return _not_found(registry)
    release = registry.simpletuner()
    version = release.version or "of unknown version"
    return [f"SimpleTuner {version} ({registry.trainer_python})", *release.missing]


def _not_found(registry: Registry) -> list[str]:
    """Says which Pythons were looked at, what each lacks, and how the trainer is installed."""
    how = f"to install it: {INSTALL_LINE}; or name its Python with --trainer-python PATH"
    if not registry.looked_at:
        return [f"SimpleTuner is not installed in {registry.trainer_python}", how]
    named = [f"{one.python} ({_lack(one)})" for one in registry.looked_at[:MOST_TOLD]]
    more = len(registry.looked_at) - len(named)
    places = ", ".join(named) + (f" and {more} more" if more else "")
    return ["SimpleTuner was not found", f"looked at {places}", how]


def _lack(one: LookedAt) -> str:
    return "it does not run" if one.missing is None else f"no {' and no '.join(one.missing)}"


def tell(registry: Registry, *, named: bool) -> None:
    """Logs what is installed.

    Whoever named a Python is warned that it has no trainer; others may want no trainer at all.
    """
    first, *more = describe(registry)
    absent = not registry.has_simpletuner()
    log.log(logging.WARNING if named and absent else logging.INFO, "trainer: %s", first)
    for sentence in more:
        log.log(logging.INFO if absent else logging.WARNING, "trainer: %s", sentence)
