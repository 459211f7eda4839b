"""A copy of the code into which one defect after another is put. The working tree is never touched."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from devtools.mutants.table import Mutant

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src"
TIMEOUT_S = 300.0


class Failure(NamedTuple):
    """Who noticed, as it can be asked again, and what it said."""

    tests: str
    line: str


def occurrences(mutant: Mutant) -> int:
    return (SOURCE / "simpletuner_fleet" / mutant.file).read_text(encoding="utf-8").count(mutant.old)


class Workbench:
    """The copy is compiled once; what was compiled is believed only where the text is still the same."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="mutant-")
        self._source = Path(self._folder.name) / "src"

    def __enter__(self) -> Self:
        Path(self._folder.name).chmod(0o755)  # some tests run as another user
        shutil.copytree(SOURCE, self._source, ignore=shutil.ignore_patterns("__pycache__"))
        compile_all = [
            *(sys.executable, "-m", "compileall", "-q"),
            *("--invalidation-mode", "checked-hash", str(self._source)),
        ]
        subprocess.run(compile_all, check=True, stdout=subprocess.DEVNULL)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    @contextmanager
    def holding(self, mutant: Mutant) -> Iterator[None]:
        file = self._source / "simpletuner_fleet" / mutant.file
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        try:
            yield
        finally:
            file.write_text(text, encoding="utf-8")

    def failure(self, tests: str, *, planted: bool = True) -> Failure | None:
        """Runs the tests up to the first that fails; without the defect, on the code as it is."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self._source if planted else SOURCE),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        try:
            result = subprocess.run(
                [sys.executable, *_command(tests)],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Failure(tests, f"{tests}, which did not end")
        return None if result.returncode == 0 else _first_failure(tests, result.stdout, result.stderr)


def _command(tests: str) -> list[str]:
    if tests.startswith("seed:"):
        return ["-m", "simpletuner_fleet.sim", "--fail-fast", "--seeds", "1", "--start", tests[5:]]
    if tests.startswith("large:"):
        return ["-m", "simpletuner_fleet.sim", "--fail-fast", "--large", "--seeds", tests[6:]]
    if tests.startswith("sim:"):
        return ["-m", "simpletuner_fleet.sim", "--fail-fast", "--seeds", tests[4:]]
    return ["-m", "pytest", "-x", "-q", "-n", "0", "--no-header", "-p", "no:cacheprovider", tests]


def _first_failure(tests: str, stdout: str, stderr: str) -> Failure:
    lines = stdout.splitlines() + stderr.splitlines()
    # A test may have an argument of that name, and pytest prints it.
    marks = ("seed ",) if tests.startswith(("seed:", "sim:")) else ("FAILED tests/", "ERROR tests/")
    line = next((line for line in lines if line.startswith(marks)), None)
    if line is None:
        return Failure(tests, f"{tests}: {lines[-1] if lines else 'failed'}")
    kind, _, rest = line.partition(" ")
    if kind == "seed" and not tests.startswith("large:"):
        return Failure(f"seed:{rest.partition(':')[0]}", line)
    return Failure(rest.partition(" - ")[0] if kind == "FAILED" else tests, line)
