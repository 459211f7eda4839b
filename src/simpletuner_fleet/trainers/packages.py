"""Finds out which packages another Python has."""

import subprocess
from collections.abc import Mapping

from simpletuner_fleet.trainers.contract import Answers
from simpletuner_fleet.trainers.environment import without_secrets

PROBE_TIMEOUT_S = 30.0
MAX_VERSION_CHARS = 64
LOOKED_FOR = ("simpletuner", "accelerate", "torch")
_PROBE = """
import importlib.util, sys
print(*(name for name in sys.argv[1:] if not importlib.util.find_spec(name)))
"""

_VERSION = """
import importlib.metadata, sys
print(importlib.metadata.version(sys.argv[1]))
"""


def has_packages(python: str, environment: Mapping[str, str], answers: Answers, *names: str) -> bool:
    return missing_packages(python, environment, answers, *names) == ()


def missing_packages(
    python: str, environment: Mapping[str, str], answers: Answers, *names: str
) -> tuple[str, ...] | None:
    """Looks for them in a child, away from the worker's own modules, and does not import them: that may be a gigabyte.

    Returns None where the Python itself cannot be run. It is asked for all that our trainers need, and only once.
    """
    question = (python, *dict.fromkeys((*LOOKED_FOR, *names)))
    if question not in answers:
        answer = _ask(python, environment, _PROBE, *question[1:])
        answers[question] = None if answer is None else tuple(answer.split())
    missing = answers[question]
    return None if missing is None else tuple(name for name in names if name in missing)


def version_of(python: str, environment: Mapping[str, str], distribution: str) -> str:
    """Returns the installed version; empty where it cannot be told, as in a checkout that was never installed."""
    return (_ask(python, environment, _VERSION, distribution) or "").strip()[:MAX_VERSION_CHARS]


def _ask(python: str, environment: Mapping[str, str], *words: str) -> str | None:
    try:
        probe = subprocess.run(
            [python, "-c", *words],
            env=without_secrets(environment),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return probe.stdout.decode("ascii", "replace") if probe.returncode == 0 else None
