"""`./dev test --all-pythons`: the tests on every supported Python of this machine, each in an environment of its own.

What runs is said first and what is missing is said last, so that a short list is never taken for the whole one.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parent.parent
SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
FEWEST = 2
"""One Python alone is what `./dev test` uses anyway, so a run with a single one would prove nothing."""
ENVIRONMENTS = Path(".dev") / "pythons"
PROBE = "import sys; print('%d.%d' % sys.version_info[:2])"


class Result(Struct, frozen=True):
    version: str
    interpreter: Path
    passed: bool
    took_s: float


def find_all(environment: Mapping[str, str]) -> dict[str, Path]:
    """Returns the interpreter of each supported version that there is, in the order of the versions."""
    interpreters = ((version, find(version, environment)) for version in SUPPORTED)
    return {version: path for version, path in interpreters if path is not None}


def find(version: str, environment: Mapping[str, str]) -> Path | None:
    """Returns the first candidate that runs and is of this version; a shim of pyenv may be neither."""
    return next((path for path in candidates(version, environment) if version_of(path) == version), None)


def candidates(version: str, environment: Mapping[str, str]) -> Iterator[Path]:
    """Yields where a distribution, pyenv and uv keep an interpreter of this version."""
    for folder in environment.get("PATH", "").split(os.pathsep):
        yield Path(folder) / f"python{version}"
    home = Path(environment.get("HOME", "/nonexistent"))
    pyenv = Path(environment.get("PYENV_ROOT") or home / ".pyenv")
    uv = Path(environment.get("UV_PYTHON_INSTALL_DIR") or home / ".local" / "share" / "uv" / "python")
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"), reverse=True)
    yield from sorted(uv.glob(f"cpython-{version}.*/bin/python{version}"), reverse=True)


def version_of(interpreter: Path) -> str | None:
    """Asks the interpreter itself; None if it cannot be run."""
    if not interpreter.is_file():
        return None
    command = [str(interpreter), "-I", "-c", PROBE]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout.strip() if result.returncode == 0 else None


def test_on(version: str, interpreter: Path, arguments: Sequence[str], root: Path) -> Result:
    """Runs `./dev test` with this interpreter, in an environment that is kept for the next time."""
    print(f"\n== Python {version} ({interpreter})", flush=True)
    began = time.monotonic()
    environment = {
        **os.environ,
        "PYTHON": str(interpreter),
        "DEV_VENV": str(root / ENVIRONMENTS / version),
    }
    result = subprocess.run([root / "dev", "test", *arguments], cwd=root, env=environment, check=False)
    return Result(version, interpreter, result.returncode == 0, time.monotonic() - began)


def overview(interpreters: Mapping[str, Path]) -> str:
    """Says which versions there are and which there are not."""
    missing = [version for version in SUPPORTED if version not in interpreters]
    lines = [f"Python {version}: {path}" for version, path in interpreters.items()]
    lines += [f"Python {version}: MISSING, not on the PATH nor kept by pyenv or uv" for version in missing]
    return "\n".join(lines)


def summary(results: Sequence[Result]) -> str:
    """Says in one line for each supported version how it went, also for those that did not run."""
    by_version = {result.version: result for result in results}
    return "\n".join(_summary_line(version, by_version.get(version)) for version in SUPPORTED)


def _summary_line(version: str, result: Result | None) -> str:
    if result is None:
        return f"Python {version}  MISSING  not tested"
    return f"Python {version}  {'passed' if result.passed else 'FAILED':<7}  {result.took_s:.0f} s"


def main(arguments: Sequence[str], environment: Mapping[str, str] = os.environ, root: Path = ROOT) -> int:
    """Returns 0 only if at least two versions were found and the tests passed on each of them."""
    interpreters = find_all(environment)
    print(overview(interpreters), flush=True)
    if len(interpreters) < FEWEST:
        print(
            f"The tests were not run on all Pythons.\n  why:  {len(interpreters)} of {len(SUPPORTED)} is here, and one"
            " alone is what `./dev test` uses anyway.\n  next: Install another (Debian, Ubuntu: apt-get install"
            " python3.12-venv; or pyenv install 3.12), then run this again.",
            file=sys.stderr,
        )
        return 1
    results = [test_on(version, path, arguments, root) for version, path in interpreters.items()]
    print(f"\n{summary(results)}", flush=True)
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
