"""Known weaknesses of the pinned packages, asked for with pip-audit. An audit that was not made is never called good."""

import json
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

TOOL = "pip-audit==2.10.1"
LOCK = "requirements.lock"
PATIENCE_S = 600


class Audit(Struct, frozen=True):
    """What came out: with a reason in `not_made` nothing is known, whatever else stands here."""

    packages: int = 0
    weaknesses: tuple[str, ...] = ()
    not_made: str = ""

    def __str__(self) -> str:
        if self.not_made:
            return f"Dependency audit: not made ({self.not_made})"
        if self.weaknesses:
            return f"Dependency audit: {len(self.weaknesses)} known weaknesses: {', '.join(self.weaknesses)}"
        return f"Dependency audit: no known weakness in {self.packages} pinned packages"


def audit(root: Path, tool: Sequence[str] | None = None) -> Audit:
    """Asks the advisories about every line of the lock; `tool` is a pip-audit that is installed already."""
    try:
        command = [*(tool or installed(root)), "--requirement", LOCK, "--disable-pip", "--format", "json"]
        asked = subprocess.run(
            [*command, "--progress-spinner", "off"],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Audit(not_made="the advisories did not answer in time")
    except (OSError, subprocess.CalledProcessError) as error:
        return Audit(not_made=f"{TOOL} cannot be had: {_last_line(getattr(error, 'stderr', '')) or error}")
    try:
        packages = json.loads(asked.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return Audit(not_made=_last_line(asked.stderr) or f"{TOOL} ended with {asked.returncode}")
    return _judged(packages, asked.returncode)


def _judged(packages: list[dict[str, Any]], status: int) -> Audit:
    """An answer that leaves a package out, or says nothing at all, is no audit."""
    left_out = [one for one in packages if "skip_reason" in one or "vulns" not in one]
    if left_out or not packages:
        why = left_out[0].get("skip_reason", "") if left_out else ""
        return Audit(
            not_made=f"nothing was said about {len(left_out)} of {len(packages)} packages. {why}"[
                :300
            ].strip()
        )
    weaknesses = tuple(
        f"{one['name']} {one['version']}: {weakness['id']}" for one in packages for weakness in one["vulns"]
    )
    if status != 0 and not weaknesses:
        return Audit(not_made=f"{TOOL} ended with {status}, and named no weakness")
    return Audit(packages=len(packages), weaknesses=weaknesses)


def installed(root: Path) -> list[str]:
    """Makes an environment of its own for the tool, which has no place among what it judges."""
    folder = root / ".dev" / "audit"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True, clear=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", TOOL]
    subprocess.run(install, check=True, capture_output=True, text=True, timeout=PATIENCE_S)
    return [str(python), "-m", "pip_audit"]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def main(root: Path = Path(__file__).parents[2]) -> int:
    outcome = audit(root)
    print(outcome)
    return 1 if outcome.not_made or outcome.weaknesses else 0


if __name__ == "__main__":
    sys.exit(main())
