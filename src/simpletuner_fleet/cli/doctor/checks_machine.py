"""Checks this machine: GPUs, disk, shared memory, file limits, and whose `simpletuner` comes first on PATH."""

import asyncio
import os
import resource
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from simpletuner_fleet.agent.gpus.gpu_probe import GpuProbe, Inventory
from simpletuner_fleet.agent.isolation.cgroups import JobLimits, choose_cgroups
from simpletuner_fleet.cli.doctor.findings import CheckFinding, bad, doubt, good
from simpletuner_fleet.core.worker_errors import InventoryError, JobLimitUnavailable, TrainerPythonMissing
from simpletuner_fleet.core.workers.job_groups import lacks_something
from simpletuner_fleet.languages import _, current, spoken_number
from simpletuner_fleet.languages.code_texts import groups_text
from simpletuner_fleet.trainers.installed import trainers_for

GIB = 1024**3
LITTLE_DISK_GB, NO_DISK_GB = 20.0, 1.0
LITTLE_SHM_GB = 1.0
FEW_FILES = 4096
OTHER_DISTRIBUTION = "simpletuner"


def gpus(environ: Mapping[str, str]) -> Iterator[CheckFinding]:
    try:
        inventory = asyncio.run(_probe(environ))
    except InventoryError as error:
        yield bad(_("GPUs"), error.detail, error.next or "")
        return
    if inventory.problem:
        yield bad(_("GPUs"), inventory.problem, _("verify that the GPU drivers are functioning: nvidia-smi"))
    elif not inventory.gpus:
        yield doubt(
            _("GPUs"),
            _("none found: this machine can run jobs that ask for no GPU only"),
            _(
                "verify that the GPU drivers are functioning: nvidia-smi; or declare them: "
                "SIMPLETUNER_GPU_INVENTORY"
            ),
        )
    for gpu in inventory.gpus:
        yield good(
            _("GPU %(index)s", index=gpu.index),
            _(
                "%(name)s, %(vram_gb)s GB, %(uuid)s (%(source)s)",
                name=gpu.name,
                vram_gb=f"{gpu.vram_gb:g}",
                uuid=gpu.uuid,
                source=inventory.source,
            ),
        )
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        yield doubt(
            "CUDA_VISIBLE_DEVICES",
            _("is set to '%(visible)s'; the worker overrides it for each job", visible=visible),
            _("choose GPUs with --gpus instead: unset CUDA_VISIBLE_DEVICES"),
        )


async def _probe(environ: Mapping[str, str]) -> Inventory:
    probe = GpuProbe(environ)
    try:
        return await probe.find()
    finally:
        await probe.close()


def disk(about: str, folder: Path) -> CheckFinding:
    place = next((parent for parent in (folder, *folder.parents) if parent.exists()), Path("/"))
    free_gb = shutil.disk_usage(place).free / GIB
    if free_gb < NO_DISK_GB:
        return bad(
            about,
            _("only %(free_gb)s GB free at %(place)s", free_gb=spoken_number(free_gb, 1), place=place),
            _("ensure sufficient disk space: df -h"),
        )
    if free_gb < LITTLE_DISK_GB:
        return doubt(
            about,
            _(
                "%(free_gb)s GB free on %(place)s: checkpoints may not fit",
                free_gb=spoken_number(free_gb, 1),
                place=place,
            ),
            _("free up space: df -h"),
        )
    return good(about, _("%(free_gb)s GB free on %(place)s", free_gb=spoken_number(free_gb), place=place))


def shared_memory(path: Path = Path("/dev/shm")) -> Iterator[CheckFinding]:
    if not path.is_dir():
        return
    size_gb = shutil.disk_usage(path).total / GIB
    if size_gb < LITTLE_SHM_GB:
        yield doubt(
            _("shared memory"),
            _(
                "%(path)s has %(size_gb)s GB; data loaders with workers need more",
                path=path,
                size_gb=spoken_number(size_gb, 2),
            ),
            _("in a container: docker run --ipc=host (or --shm-size=8g)"),
        )
    else:
        yield good(
            _("shared memory"), _("%(path)s has %(size_gb)s GB", path=path, size_gb=spoken_number(size_gb, 1))
        )


def control_groups(memory_gb: float | None, pids: int | None) -> CheckFinding:
    """Checks them as a worker started from here would have them; a service has a group of its own."""
    about = _("control groups")
    try:
        labels = choose_cgroups(JobLimits(memory_gb=memory_gb, pids=pids), change=False).labels()
    except JobLimitUnavailable as error:
        return bad(about, error.detail, error.next or "")
    sentence = _("started from here: %(what)s", what=groups_text(current(), labels))
    if not lacks_something(labels):
        return good(about, sentence)
    return doubt(
        about, sentence, _("simpletuner service install worker makes a unit whose groups are delegated")
    )


def open_files() -> CheckFinding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if (
        soft != resource.RLIM_INFINITY
        and soft < FEW_FILES
        and (hard == resource.RLIM_INFINITY or hard >= FEW_FILES)
    ):
        return good(
            _("open files"),
            _("%(soft)s, raised at startup to at most %(hard)s", soft=soft, hard=hard)
            if hard > 0
            else _("%(soft)s, raised at startup without limit", soft=soft),
        )
    if soft != resource.RLIM_INFINITY and soft < FEW_FILES:
        return doubt(
            _("open files"),
            _("at most %(hard)s", hard=hard),
            _("raise the limit: ulimit -n %(few_files)s", few_files=FEW_FILES),
        )
    return good(_("open files"), str(soft) if soft > 0 else _("no limit"))


def trainer(named: str | None, environ: Mapping[str, str]) -> Iterator[CheckFinding]:
    """Checks the Python of the trainer: the one that was named, or the one that a worker would find."""
    try:
        registry = trainers_for(named, environ)
    except TrainerPythonMissing as error:
        yield bad(_("trainer"), error.detail, error.next or "")
        return
    if not registry.has_simpletuner():
        yield doubt(
            _("trainer"),
            _("SimpleTuner is not installed in %(python)s", python=registry.trainer_python),
            _("point the worker at the environment that has it: --trainer-python PATH"),
        )
        return
    release = registry.simpletuner()
    version = release.version or _("of unknown version")
    yield good(
        _("trainer"),
        _("SimpleTuner %(version)s, %(python)s", version=version, python=registry.trainer_python),
    )
    for sentence in release.missing:
        yield doubt(_("trainer"), _(sentence), _("a newer release can: pip install --upgrade simpletuner"))


def command_clash(environ: Mapping[str, str]) -> Iterator[CheckFinding]:
    """Checks whose `simpletuner` is called: the trainer's package brings a command of the same name."""
    first = shutil.which("simpletuner", path=environ.get("PATH"))
    own = Path(sys.executable).with_name("simpletuner")
    if first and own.exists() and not os.path.samefile(first, own):
        yield bad(
            _("command"),
            _("%(first)s comes first on PATH and is not ours (%(own)s)", first=first, own=own),
            _("call %(own)s, or put %(parent)s first on PATH", own=own, parent=own.parent),
        )
    try:
        version = metadata.version(OTHER_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        yield good(_("command"), f"{own if own.exists() else first or sys.executable}")
        return
    yield doubt(
        _("command"),
        _(
            "the trainer simpletuner %(version)s is installed in the same environment and provides the "
            "same command",
            version=version,
        ),
        _(
            "install simpletuner-fleet on its own: uv tool install simpletuner-fleet; and point the worker "
            "at the trainer with --trainer-python"
        ),
    )
