"""`./dev mutants`: puts each known defect into a copy of the code and shows the tests failing."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from devtools.mutants.table import MUTANTS, Mutant

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src"
TIMEOUT_S = 300.0


def occurrences(mutant: Mutant) -> int:
    return (SOURCE / "simpletuner_fleet" / mutant.file).read_text(encoding="utf-8").count(mutant.old)


def killed_by(mutant: Mutant) -> str | None:
    """Returns the first test that noticed, or None. The working tree is never touched."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        Path(folder).chmod(0o755)  # some tests run as another user
        copy = Path(folder) / "src"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        file = copy / "simpletuner_fleet" / mutant.file
        file.write_text(file.read_text(encoding="utf-8").replace(mutant.old, mutant.new), encoding="utf-8")
        for tests in mutant.tests:
            failure = _failure(_command(tests), copy)
            if failure and not _fails_anyway(failure):
                return failure
    return None


def _fails_anyway(failure: str) -> bool:
    """Tells whether a test fails without the defect, too: then it has not noticed it."""
    kind, _, rest = failure.partition(" ")
    if kind == "seed":
        return _failure(["-m", "simpletuner_fleet.sim", "--seed", rest.partition(":")[0]], SOURCE) is not None
    return kind == "FAILED" and _failure(_command(rest.partition(" - ")[0]), SOURCE) is not None


def _command(tests: str) -> list[str]:
    if tests.startswith("sim:"):
        return ["-m", "simpletuner_fleet.sim", "--fail-fast", "--seeds", tests[4:]]
    return ["-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", tests]


def _failure(command: list[str], source: Path) -> str | None:
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        result = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{command[-1]} did not end"
    if result.returncode == 0:
        return None
    lines = result.stdout.splitlines() + result.stderr.splitlines()
    failures = [line for line in lines if line.startswith(("FAILED", "ERROR", "seed "))]
    return failures[0] if failures else f"{command[-1]}: {lines[-1] if lines else 'failed'}"


def is_killed(mutant: Mutant) -> bool:
    began = time.monotonic()
    count = occurrences(mutant)
    verdict = killed_by(mutant) if count == 1 else None
    if count != 1:
        verdict_text = f"CANNOT BE APPLIED (its text occurs {count} times in {mutant.file})"
    else:
        verdict_text = f"killed by {verdict}" if verdict else "SURVIVED"
    print(f"{mutant.name:<32} {time.monotonic() - began:6.1f} s  {verdict_text[:150]}", flush=True)
    return verdict is not None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="devtools.mutants", description=__doc__)
    parser.add_argument("--only", action="append", help="this one alone; may be repeated")
    parser.add_argument("--list", action="store_true", help="name them and do nothing")
    parser.add_argument("--parallel", type=int, default=2)
    options = parser.parse_args(argv)
    mutants = [mutant for mutant in MUTANTS if not options.only or mutant.name in options.only]
    if options.list:
        for mutant in mutants:
            print(f"{mutant.name:<32} {mutant.defect}")
        return 0
    with ThreadPoolExecutor(options.parallel) as pool:
        results = list(pool.map(is_killed, mutants))
    print(f"{sum(results)} of {len(results)} killed")
    return 0 if mutants and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
