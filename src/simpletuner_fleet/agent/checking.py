"""Implements `simpletuner worker --check`: it tries everything that a start needs, and changes nothing."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from simpletuner_fleet.agent.gpus.gpu_probe import GpuProbe, select_gpus
from simpletuner_fleet.agent.isolation.cgroups import choose_cgroups
from simpletuner_fleet.agent.isolation.walls import Walls, choose_walls
from simpletuner_fleet.agent.program import (
    WorkerSettings,
    jobs_at_once,
    surroundings,
    work_folder,
)
from simpletuner_fleet.agent.token_source import TokenSource
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.agent.wire.connecting import client_for
from simpletuner_fleet.agent.wire.direct_connections import DirectFailed
from simpletuner_fleet.agent.wire.errors import Unreachable
from simpletuner_fleet.core.worker_errors import StateDirError
from simpletuner_fleet.languages import _, ngettext
from simpletuner_fleet.trainers.installed import describe, trainers_for

MUCH_SKEW_S = 30.0
GB = 10**9
LITTLE_SPACE_GB, NO_SPACE_GB = 20.0, 1.0


class Findings:
    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.doubts = 0

    def good(self, about: str, what: str) -> None:
        self._say(f"✓ {about:<10} {what}")

    def doubt(self, about: str, what: str) -> None:
        self.doubts += 1
        self._say(f"! {about:<10} {what}")

    def more(self, what: str) -> None:
        self._say(f"  {'':<10} {what}")


async def check_worker(
    settings: WorkerSettings, environment: dict[str, str], say: Callable[[str], None]
) -> None:
    """Checks everything that a start needs, and raises what the start would."""
    findings = Findings(say)
    token = TokenSource(settings.token, settings.token_file or Path(os.devnull))
    findings.good("token", _("%(n)s characters, checksum fits", n=len(token.token)))
    client = await client_for(settings.urls, settings.tls, lambda: token.token)
    try:
        await _check_way(settings, client, findings)
    finally:
        await client.close()
    _check_folders(settings, findings)
    await _check_gpus(settings, environment, findings)
    python = await asyncio.to_thread(_check_trainers, settings, environment, findings)
    walls = await asyncio.to_thread(_tried_walls, settings, environment, python)
    (findings.doubt if walls.name == "none" else findings.good)("isolation", walls.name)
    cgroups = await asyncio.to_thread(choose_cgroups, settings.limits, change=False)
    (findings.doubt if cgroups.lack else findings.good)("cgroup", cgroups.sentence())
    say(_conclusion(findings.doubts))


async def _check_way(settings: WorkerSettings, client: OrchestratorClient, findings: Findings) -> None:
    tls = settings.tls.kind(client.url)
    known_as = await client.ask()
    (findings.good if tls in ("pinned", "verified") else findings.doubt)("TLS", _tls_sentence(tls))
    findings.good("server", _("%(url)s accepts the token", url=client.url))
    _check_name(settings.name, known_as, findings)
    skew_s = await client.clock_skew_s()
    if skew_s is None:
        findings.doubt("clock", _("the server does not say what time it is"))
    elif abs(skew_s) > MUCH_SKEW_S:
        findings.doubt(
            "clock",
            _(
                "%(skew)s s off the server's clock: set the time (timedatectl set-ntp true)",
                skew=f"{skew_s:+.0f}",
            ),
        )
    else:
        findings.good("clock", _("agrees with the server's"))
    arrived = await client.try_part()
    findings.good("uploads", _("an upload of %(size)s arrives intact", size=f"{arrived / 2**20:g} MiB"))
    await _check_storage(client, findings)


def _check_name(name: str, known_as: str, findings: Findings) -> None:
    """Compares the worker's name with the token's. An older server does not say whose token it is."""
    if not known_as:
        return
    if known_as == name:
        findings.good("name", name)
    else:
        findings.doubt(
            "name",
            _(
                "the token belongs to the worker '%(known)s': the server will show that name, not '%(name)s'",
                known=known_as,
                name=name,
            ),
        )


async def _check_storage(client: OrchestratorClient, findings: Findings) -> None:
    try:
        if await client.try_storage():
            findings.good("storage", _("the bucket can be reached: large files go straight there"))
    except (DirectFailed, Unreachable) as error:
        findings.doubt(
            "storage",
            _(
                "the bucket cannot be reached from here (%(why)s): large files go through the server",
                why=error,
            ),
        )


def _tls_sentence(kind: str) -> str:
    match kind:
        case "pinned":
            return _("certificate trusted: it is the pinned one")
        case "verified":
            return _("certificate trusted: a known authority signed it")
        case "unverified":
            return _("certificate not verified (--ssl-no-verify): anybody could stand in between")
        case _:
            return _("none (plain HTTP)")


def _check_folders(settings: WorkerSettings, findings: Findings) -> None:
    folder = work_folder(settings).expanduser().absolute()
    folders = {"work dir": folder, "data cache": settings.data_cache_dir or folder / "data-cache"}
    for about, place in folders.items():
        free_gb = _writable_space(place) / GB
        if free_gb < LITTLE_SPACE_GB:
            findings.doubt(
                about,
                _(
                    "%(place)s: only %(free)s GB free; checkpoints may not fit",
                    place=place,
                    free=f"{free_gb:.1f}",
                ),
            )
        else:
            findings.good(
                about, _("%(place)s: writable, %(free)s GB free", place=place, free=f"{free_gb:.0f}")
            )


def _writable_space(folder: Path) -> int:
    """Returns the bytes that are free for it; raises where a worker could not keep anything there."""
    place = next(one for one in (folder, *folder.parents) if one.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=place) as file:
            file.write(bytes(4096))
            file.flush()
        free = shutil.disk_usage(place).free
    except OSError as error:
        raise StateDirError(
            f"Nothing can be written to {place}: {error.strerror}.",
            next_step="Name another folder with --work-dir, or change its owner.",
        ) from error
    if free < NO_SPACE_GB * GB:
        raise StateDirError(
            f"Only {free / GB:.1f} GB are free at {place}.",
            next_step="Make space (df -h), or name another folder with --work-dir.",
        )
    return free


async def _check_gpus(settings: WorkerSettings, environment: dict[str, str], findings: Findings) -> None:
    probe = GpuProbe(environment)
    try:
        inventory = await probe.find()
    finally:
        await probe.close()
    if not inventory.is_known:
        findings.doubt("GPU", inventory.problem or inventory.source)
        return
    gpus = select_gpus(inventory.gpus, settings.gpus)
    for gpu in gpus:
        findings.good(f"GPU {gpu.index}", f"{gpu.name}, {gpu.vram_gb:g} GB, {gpu.uuid}")
    if not gpus:
        none = _("none found: only jobs that need no GPU will run here")
        findings.doubt("GPU", f"{none} ({inventory.problem})" if inventory.problem else none)
    elif inventory.problem:
        findings.doubt("GPU", inventory.problem)
    count = jobs_at_once(settings, len(gpus))
    findings.good("jobs", ngettext("%(n)s job at a time", "up to %(n)s jobs at a time", count))


def _check_trainers(settings: WorkerSettings, environment: dict[str, str], findings: Findings) -> str:
    """Returns the Python that trainers run by."""
    registry = trainers_for(settings.trainer_python, environment)
    findings.good("trainers", ", ".join(registry.available()))
    first, *more = describe(registry)
    (findings.good if registry.has_simpletuner() else findings.doubt)("trainer", first)
    for line in more:
        findings.more(line)
    return registry.trainer_python


def _tried_walls(settings: WorkerSettings, environment: dict[str, str], trainer_python: str) -> Walls:
    with tempfile.TemporaryDirectory() as folder:
        about = surroundings(settings, environment, Path(folder), Path(folder), trainer_python)
        return choose_walls(settings.isolation, about, Path(folder), 1)


def _conclusion(doubts: int) -> str:
    if not doubts:
        return _("Everything is in place. Leave --check out to start the worker.")
    return ngettext(
        "The worker can start. %(n)s thing to look at is marked with !",
        "The worker can start. %(n)s things to look at are marked with !",
        doubts,
    )
