"""Programs from Debian packages for single tests: from the PATH, or unpacked beside the checkout and not installed."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

PLACE = Path(__file__).parents[2] / ".dev" / "debian"


def tool(name: str, package: str) -> str | None:
    """Returns the program's path; None where it is not there and cannot be fetched."""
    known = shutil.which(name) or shutil.which(name, path=str(PLACE / package / "usr" / "bin"))
    if known or not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return known
    arriving = PLACE / f"{package}.{os.getpid()}"
    arriving.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(
            ["apt-get", "download", "-qq", package], cwd=arriving, check=True, capture_output=True, timeout=60
        )
        (archive,) = arriving.glob("*.deb")
        subprocess.run(
            ["dpkg-deb", "-x", archive, arriving / "files"], check=True, capture_output=True, timeout=60
        )
        if not (PLACE / package).exists():
            (arriving / "files").rename(PLACE / package)
    except (subprocess.SubprocessError, OSError, ValueError):
        return None
    finally:
        shutil.rmtree(arriving, ignore_errors=True)
    return shutil.which(name, path=str(PLACE / package / "usr" / "bin"))


def unpacked(name: str, packages: Sequence[str]) -> Path | None:
    """Returns the folder with the files of these packages and of what they need; None where they cannot be had."""
    aside = PLACE / name
    if aside.exists() or not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return aside if aside.exists() else None
    arriving = PLACE / f"{name}.{os.getpid()}"
    archives = arriving / "archives"
    (archives / "partial").mkdir(parents=True, exist_ok=True)
    fetch = ["apt-get", "install", "--yes", "--no-install-recommends", "--download-only"]
    options = ["-o", f"Dir::Cache::archives={archives}", "-o", "Debug::NoLocking=1"]
    try:
        subprocess.run([*fetch, *options, *packages], check=True, capture_output=True, timeout=120)
        for archive in archives.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", archive, arriving / "files"], check=True, timeout=60)
        if not aside.exists():
            (arriving / "files").rename(aside)
    except (subprocess.SubprocessError, OSError):
        return aside if aside.exists() else None
    finally:
        shutil.rmtree(arriving, ignore_errors=True)
    return aside
