"""Determines from firmware and environment whose machine this is, so that only that provider is asked for notices."""

from collections.abc import Mapping
from pathlib import Path

AWS, GCP, AZURE = "aws", "gcp", "azure"
CLOUDS = (AWS, GCP, AZURE)
FIRMWARE = Path("/sys/class/dmi/id")
AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"
"""In the chassis of every virtual machine of Azure; its vendor's name is that of many a notebook, too."""
MAX_CHARS = 256
SIGNALLED = (
    ("slurm", "SLURM_JOB_ID"),
    ("kubernetes", "KUBERNETES_SERVICE_HOST"),
    ("runpod", "RUNPOD_POD_ID"),
    ("vast", "VAST_CONTAINERLABEL"),
)
"""Who says by a signal that the end is near, and the variable by which they are known."""


def cloud_of(folder: Path = FIRMWARE) -> str | None:
    """Returns the cloud that the firmware names, which is out of the network's reach, and of a job's.

    It blocks briefly for files in /sys, which are on no disk.
    """
    vendor = _line(folder / "sys_vendor")
    if vendor == "Amazon EC2" or _line(folder / "board_vendor") == "Amazon EC2":
        return AWS
    if vendor == "Google" or _line(folder / "product_name") == "Google Compute Engine":
        return GCP
    return AZURE if _line(folder / "chassis_asset_tag") == AZURE_TAG else None


def signaller(environment: Mapping[str, str]) -> str | None:
    """Tells who it is that sends SIGTERM before a machine's end; None is whoever stops this one program."""
    return next((name for name, variable in SIGNALLED if environment.get(variable)), None)


def _line(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(MAX_CHARS).strip()
    except OSError:
        return ""
