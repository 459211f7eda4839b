"""`./dev test --coverage`: the tests with every line and branch they reach counted, in all processes they start."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".dev" / "coverage"
PACKAGE = "simpletuner_fleet"
LEAST_COVERED = 10
PYTEST = ("-m", "pytest", "-n", "4", "--dist", "worksteal", "-m", "not long")


class FileCoverage(Struct, frozen=True):
    path: str
    percent: float
    missing_lines: int


class Coverage(Struct, frozen=True):
    percent: float
    files: tuple[FileCoverage, ...]


def parse(report: str) -> Coverage:
    """Reads the JSON that `coverage json` writes; files without a statement are left out."""
    content = json.loads(report)
    files = tuple(
        FileCoverage(path, facts["summary"]["percent_covered"], facts["summary"]["missing_lines"])
        for path, facts in content["files"].items()
        if facts["summary"]["num_statements"]
    )
    return Coverage(content["totals"]["percent_covered"], files)


def text(coverage: Coverage) -> str:
    """Returns the least covered files, the worst first, and the total."""
    worst = sorted(coverage.files, key=lambda file: (file.percent, -file.missing_lines, file.path))
    lines = [f"{file.percent:5.1f} %  {file.missing_lines:4} lines missing  {file.path}" for file in worst]
    head = f"The {min(LEAST_COVERED, len(worst))} least covered of {len(worst)} files:"
    return "\n".join((head, *lines[:LEAST_COVERED], f"Total: {coverage.percent:.1f} %"))


def coverage_tool(folder: Path, *arguments: str) -> int:
    """Runs coverage with its data in this folder; a run around this one is not disturbed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    environment["COVERAGE_FILE"] = str(folder / "data")
    command = [sys.executable, "-m", "coverage", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def main(arguments: Sequence[str], folder: Path = FOLDER, package: str = PACKAGE) -> int:
    """Returns what pytest returned; the figures are printed also when a test has failed."""
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / "report.json"
    coverage_tool(folder, "erase")
    outcome = coverage_tool(folder, "run", f"--source={package}", *PYTEST, *arguments)
    if coverage_tool(folder, "combine", "--quiet") or coverage_tool(
        folder, "json", "--quiet", "-o", str(report)
    ):
        return outcome or 1
    print(text(parse(report.read_text(encoding="utf-8"))))
    return outcome


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
