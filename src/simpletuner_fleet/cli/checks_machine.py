"""This machine: GPUs, disk, shared memory, file limits, and whose `simpletuner` is found first."""

import asyncio
import os
import resource
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from simpletuner_fleet.agent.gpu_probe import GpuProbe, Inventory, InventoryError
from simpletuner_fleet.cli.findings import Finding, bad, doubt, good

GIB = 1024**3
LITTLE_DISK_GB, NO_DISK_GB = 20.0, 1.0
LITTLE_SHM_GB = 1.0
FEW_FILES = 4096
OTHER_DISTRIBUTION = "simpletuner"


def gpus(environ: Mapping[str, str]) -> Iterator[Finding]:
    try:
        found = asyncio.run(_probe(environ))
    except InventoryError as error:
        yield bad("GPUs", error.detail, error.next or "")
        return
    if found.problem:
        yield bad("GPUs", found.problem, "verify that the GPU drivers are functioning: nvidia-smi")
    elif not found.gpus:
        yield doubt(
            "GPUs",
            "none found: this machine can run jobs that ask for no GPU only",
            "verify that the GPU drivers are functioning: nvidia-smi; or declare them: SIMPLETUNER_GPU_INVENTORY",
        )
    for gpu in found.gpus:
        yield good(f"GPU {gpu.index}", f"{gpu.name}, {gpu.vram_gb:g} GB, {gpu.uuid} ({found.source})")
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        yield doubt(
            "CUDA_VISIBLE_DEVICES",
            f"is set to '{visible}'; the worker sets it anew for each job",
            "choose GPUs with --gpus instead: unset CUDA_VISIBLE_DEVICES",
        )


async def _probe(environ: Mapping[str, str]) -> Inventory:
    probe = GpuProbe(environ)
    try:
        return await probe.find()
    finally:
        await probe.close()


def disk(about: str, folder: Path) -> Finding:
    place = next((parent for parent in (folder, *folder.parents) if parent.exists()), Path("/"))
    free_gb = shutil.disk_usage(place).free / GIB
    if free_gb < NO_DISK_GB:
        return bad(about, f"only {free_gb:.1f} GB free at {place}", "ensure sufficient disk space: df -h")
    if free_gb < LITTLE_DISK_GB:
        return doubt(about, f"{free_gb:.1f} GB free at {place}: checkpoints may not fit", "make space: df -h")
    return good(about, f"{free_gb:.0f} GB free at {place}")


def shared_memory(path: Path = Path("/dev/shm")) -> Iterator[Finding]:
    if not path.is_dir():
        return
    size_gb = shutil.disk_usage(path).total / GIB
    if size_gb < LITTLE_SHM_GB:
        yield doubt(
            "shared memory",
            f"{path} has {size_gb:.2f} GB; data loaders with workers need more",
            "in a container: docker run --ipc=host (or --shm-size=8g)",
        )
    else:
        yield good("shared memory", f"{path} has {size_gb:.1f} GB")


def open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if (
        soft != resource.RLIM_INFINITY
        and soft < FEW_FILES
        and (hard == resource.RLIM_INFINITY or hard >= FEW_FILES)
    ):
        return good("open files", f"{soft}, raised at the start up to {hard if hard > 0 else 'no limit'}")
    if soft != resource.RLIM_INFINITY and soft < FEW_FILES:
        return doubt("open files", f"at most {hard}", f"raise the limit: ulimit -n {FEW_FILES}")
    return good("open files", f"{soft if soft > 0 else 'no limit'}")


def command_clash(environ: Mapping[str, str]) -> Iterator[Finding]:
    """The trainer's package brings a command of the same name."""
    first = shutil.which("simpletuner", path=environ.get("PATH"))
    own = Path(sys.executable).with_name("simpletuner")
    if first and own.exists() and not os.path.samefile(first, own):
        yield bad(
            "command",
            f"{first} comes first on PATH and is not ours ({own})",
            f"call {own}, or put {own.parent} first on PATH",
        )
    try:
        version = metadata.version(OTHER_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        yield good("command", f"{own if own.exists() else first or sys.executable}")
        return
    yield bad(
        "command",
        f"the trainer simpletuner {version} is installed in the same environment and brings the same command",
        "install simpletuner-fleet on its own: uv tool install simpletuner-fleet; "
        "and point the worker at the trainer with --trainer-python",
    )
