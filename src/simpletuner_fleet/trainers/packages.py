"""Which packages another Python has."""

import subprocess
from collections.abc import Mapping

from simpletuner_fleet.trainers.environment import without_secrets

PROBE_TIMEOUT_S = 30.0
_PROBE = """
import importlib.util, sys
found = all(importlib.util.find_spec(name) for name in sys.argv[1:])
sys.exit(0 if found else 3)
"""


def has_packages(python: str, environment: Mapping[str, str], *names: str) -> bool:
    """Looked for in a child, away from the worker's own modules, and not imported: that may be a gigabyte."""
    try:
        probe = subprocess.run(
            [python, "-c", _PROBE, *names],
            env=without_secrets(environment),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return probe.returncode == 0


def version_of(python: str, environment: Mapping[str, str], package: str) -> str | None:
    """The release of a package that another Python has; None where it has none."""
    code = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
    try:
        answer = subprocess.run(
            [python, "-c", code, package],
            env=without_secrets(environment),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None
