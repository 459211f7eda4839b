"""`./dev check`: every static check, each with its time; all of them run, even when one fails."""

import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
BIN = Path(sysconfig.get_path("scripts"))
CHECKED_FOLDERS = ("src", "tests", "devtools", "bench")

Step = tuple[str, list[str]]


def steps() -> list[Step]:
    """What is checked, in the order a person would want to hear about it."""
    folders = [folder for folder in CHECKED_FOLDERS if (ROOT / folder).is_dir()]
    return [
        ("format", [_tool("ruff"), "format", "--check", "--quiet", *folders]),
        ("lint", [_tool("ruff"), "check", "--quiet", *folders]),
        ("types", [_tool("mypy"), "--strict", "--no-error-summary", *folders]),
        ("imports", [_tool("lint-imports"), "--no-logo", "--cache-dir", ".dev/import-linter"]),
        ("purity", [sys.executable, "-m", "devtools.purity"]),
        ("diagrams", [sys.executable, "-m", "devtools.diagrams", "--check"]),
    ]


def _tool(name: str) -> str:
    return str(BIN / name)


def passes(step: Step) -> bool:
    """Run one step, say how it went and how long it took; its output only when it failed."""
    name, command = step
    began = time.monotonic()
    result = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    ok = result.returncode == 0
    print(f"{name:<8} {'ok' if ok else 'FAILED':<6} {time.monotonic() - began:6.1f} s", flush=True)
    if not ok:
        print(result.stdout.rstrip(), flush=True)
    return ok


def main() -> int:
    """Run every step; the exit status is 1 when one failed."""
    failed = [step[0] for step in steps() if not passes(step)]
    if failed:
        print(f"Failed: {', '.join(failed)}. `./dev fmt` mends formatting and the simpler lint findings.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
