"""What of the fleet's own trainer is installed here: found at the start, told to people and to the orchestrator."""

import logging
import sys
from collections.abc import Mapping
from pathlib import Path

from simpletuner_fleet.core.training.trainer_release import VERSION_LABEL
from simpletuner_fleet.trainers.finding import checked_python, find_trainer_python
from simpletuner_fleet.trainers.registry import Registry

log = logging.getLogger(__name__)


def trainers_for(named: str | None, environment: Mapping[str, str]) -> Registry:
    """With the Python that was named, or the one found; raises TrainerPythonMissing where the named one is none.

    May take seconds: call it in a thread.
    """
    if named:
        return Registry.load(trainer_python=checked_python(named), environment=environment)
    python = find_trainer_python(environment, sys.executable, Path.cwd())
    return Registry.load(trainer_python=python, environment=environment)


def version_label(registry: Registry) -> dict[str, str]:
    """A label, so that a job can ask for a version and people see it."""
    version = registry.simpletuner().version
    return {VERSION_LABEL: version} if version else {}


def describe(registry: Registry) -> list[str]:
    """A line for each thing worth knowing, the most important one first."""
    if not registry.has_simpletuner():
        return [f"SimpleTuner is not installed in {registry.trainer_python}"]
    release = registry.simpletuner()
    version = release.version or "of unknown version"
    return [f"SimpleTuner {version} ({registry.trainer_python})", *release.missing]


def tell(registry: Registry, *, named: bool) -> None:
    """Whoever named a Python wants to hear that it has no trainer; others may want no trainer at all."""
    first, *missing = describe(registry)
    log.log(
        logging.WARNING if named and not registry.has_simpletuner() else logging.INFO, "trainer: %s", first
    )
    for sentence in missing:
        log.warning("trainer: %s", sentence)
