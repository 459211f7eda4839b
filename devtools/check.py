"""`./dev check`: every static check, each with its time; all of them run, even when one fails."""

import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
BIN = Path(sysconfig.get_path("scripts"))
CHECKED_FOLDERS = ("src", "tests", "devtools", "bench")

WORKERS = "--num-workers=auto"
TOO_BUSY = "Failed to establish connection with worker"
"""What mypy says where a busy machine starts its processes too slowly, which says nothing of the types."""

Step = tuple[str, list[str]]


def steps() -> list[Step]:
    """Returns what is checked, in the order a person would want to hear about it."""
    folders = [folder for folder in CHECKED_FOLDERS if (ROOT / folder).is_dir()]
    return [
        ("format", [_tool("ruff"), "format", "--check", "--quiet", *folders]),
        ("lint", [_tool("ruff"), "check", "--quiet", *folders]),
        ("types", [_tool("mypy"), "--strict", "--no-error-summary", WORKERS, *folders]),
        ("imports", [_tool("lint-imports"), "--no-logo", "--cache-dir", ".dev/import-linter"]),
        ("purity", [sys.executable, "-m", "devtools.purity"]),
        ("client", [sys.executable, "-m", "devtools.client_table", "--check"]),
        ("diagrams", [sys.executable, "-m", "devtools.diagrams", "--check"]),
        ("guide", [sys.executable, "-m", "devtools.guide", "--check"]),
    ]


def _tool(name: str) -> str:
    return str(BIN / name)


def passes(step: Step) -> bool:
    """Runs one step and says how it went and how long it took; prints its output only when it failed."""
    name, command = step
    began = time.monotonic()
    result = _run(command)
    if TOO_BUSY in result.stdout:
        result = _run([word for word in command if word != WORKERS])
    ok = result.returncode == 0
    print(f"{name:<8} {'ok' if ok else 'FAILED':<6} {time.monotonic() - began:6.1f} s", flush=True)
    if not ok:
        print(result.stdout.rstrip(), flush=True)
    return ok


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )


def select(names: Sequence[str]) -> list[Step]:
    """Returns the steps of these names, or every step if none is named."""
    return [step for step in steps() if not names or step[0] in names]


def main(names: Sequence[str]) -> int:
    """Runs the named steps, or all of them; the exit status is 1 when one failed and 2 for a name there is not."""
    all_names = [name for name, _ in steps()]
    if not set(names) <= set(all_names):
        print(f"usage: ./dev check [{'|'.join(all_names)}]...")
        return 2
    failed = [step[0] for step in select(names) if not passes(step)]
    if failed:
        print(f"Failed: {', '.join(failed)}. `./dev fmt` mends formatting and the simpler lint findings.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
