"""Programs from Debian packages for single tests: from the PATH, or unpacked beside the checkout and not installed."""

import os
import shutil
import subprocess
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
