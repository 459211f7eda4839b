"""Environments with the real trainer, from the package index, made once and kept."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from devtools.pythons import find
from devtools.real_trainer.releases import STAND_IN, TriedRelease

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CPU_SITE, STANDINS = HERE / "cpu_site", HERE / "standins"


class NoEnvironment(Exception):
    """It cannot be had here; the message says why."""


def environment_for(release: TriedRelease, folder: Path) -> Path:
    """Returns its Python, made now where there is none yet."""
    python = folder / f"simpletuner-{release.version}" / "bin" / "python"
    if _version(python) == release.version:
        return python
    uv = ROOT / ".dev" / "tools" / "bin" / "uv"
    if not uv.exists():
        raise NoEnvironment("uv is missing: run ./dev setup")
    base = _base(release)
    shutil.rmtree(python.parent.parent, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    _run([str(uv), "venv", "-q", "--python", base, str(python.parent.parent)])
    overrides = python.parent.parent / "overrides.txt"
    overrides.write_text("".join(f"{name} ; platform_machine == 'x86_64'\n" for name in _left_out(release)))
    newer = ["--exclude-newer", release.exclude_newer] if release.exclude_newer else []
    install = [str(uv), "pip", "install", "-q", "--python", str(python), "--overrides", str(overrides)]
    _run([*install, *newer, *release.packages])
    if _version(python) != release.version:
        raise NoEnvironment(f"simpletuner {release.version} was installed and is not there")
    return python


def python_path(python: Path) -> str:
    """What a trainer on the CPU needs before its packages: no pinned memory, and a stand-in for what has no wheel."""
    has_it = subprocess.run([str(python), "-c", f"import {STAND_IN}"], capture_output=True, check=False)
    folders = [CPU_SITE] if has_it.returncode == 0 else [CPU_SITE, STANDINS]
    return ":".join(map(str, folders))


def _left_out(release: TriedRelease) -> tuple[str, ...]:
    return (*release.optional, STAND_IN) if platform.machine() != "x86_64" else ()


def _base(release: TriedRelease) -> str:
    for version in release.pythons:
        if seen := find(version, os.environ):
            return str(seen)
    raise NoEnvironment(f"none of Python {', '.join(release.pythons)} is installed here")


def _version(python: Path) -> str:
    if not python.exists():
        return ""
    ask = "import importlib.metadata as m; print(m.version('simpletuner'))"
    asked = subprocess.run([str(python), "-c", ask], capture_output=True, text=True, check=False)
    return asked.stdout.strip()


def _run(argv: list[str]) -> None:
    print(f"  {' '.join(argv[1:4])} …", file=sys.stderr, flush=True)
    made = subprocess.run(argv, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise NoEnvironment(made.stderr.strip()[-1500:])
