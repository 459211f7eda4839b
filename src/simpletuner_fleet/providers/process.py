"""Provides machines that are processes on the orchestrator's own machine, for tests and demonstrations.

A machine is a folder with the machine's name in which a worker runs. It stays listed as long as the folder or the
worker exists. The worker is found by its arguments, so nothing has to be remembered across a crash.
"""

import asyncio
import json
import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from simpletuner_fleet.core.provisioning.offers import ListedMachine, MachineOffer
from simpletuner_fleet.providers.contract import (
    CreatedMachine,
    MachineOrder,
    ProviderRefused,
    ProviderSurroundings,
)
from simpletuner_fleet.providers.settings import SettingsReader, declared_offer, end_of_file

SHOWN_LOOK_S = 0.01
KILL_AFTER_S = 40.0
"""A worker that was asked to stop gives its job back before that."""


class ProcessProvider:
    settle_s = 5.0
    sweep_s = 2.0

    def __init__(self, surroundings: ProviderSurroundings) -> None:
        settings = SettingsReader(surroundings.pool)
        self._offer = declared_offer(settings, "process")
        settings.finish()
        self._folder = surroundings.folder / "process"
        self._environment = surroundings.environment
        self._asked_to_stop: dict[str, float] = {}

    async def offers(self) -> list[MachineOffer]:
        return [self._offer]

    async def create(self, order: MachineOrder) -> CreatedMachine:
        folder = self._folder / order.name
        try:
            folder.mkdir(parents=True, mode=0o700)
            with (folder / "log").open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "simpletuner_fleet.cli.main", "worker"),
                    *("--work-dir", str(folder / "work")),
                    env={**self._environment, **self._inventory(), **order.environment},
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            raise ProviderRefused(f"{error.strerror or error}") from error
        await asyncio.to_thread(self._wait_until_shown, order.name, process.pid)
        return CreatedMachine(provider_id=order.name, hourly_micros=self._offer.hourly_micros)

    def _wait_until_shown(self, name: str, pid: int) -> None:
        """Waits for the moment from which a started process shows its arguments: before, it would be listed as ended."""
        while name not in self._processes() and Path(f"/proc/{pid}/exe").exists():
            time.sleep(SHOWN_LOOK_S)

    def _inventory(self) -> dict[str, str]:
        offer = self._offer
        if not offer.gpus:
            return {}
        declared = {"name": offer.gpu_name, "vram_gb": offer.vram_gb, "accelerator_type": offer.accelerator}
        return {"SIMPLETUNER_GPU_INVENTORY": json.dumps([{**declared, "count": offer.gpus}])}

    async def machines(self) -> list[ListedMachine]:
        return await asyncio.to_thread(self._list)

    def _list(self) -> list[ListedMachine]:
        running = self._processes()
        folders = [path.name for path in self._folder.iterdir()] if self._folder.is_dir() else []
        return [
            ListedMachine(
                provider_id=name, name=name, runs=name in running, hourly_micros=self._offer.hourly_micros
            )
            for name in sorted({*folders, *running})
        ]

    def _processes(self) -> dict[str, int]:
        """Returns process ids by the name of their machine."""
        processes: dict[str, int] = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                name = self._name_of(folder)
                if name is not None:
                    processes[name] = int(folder.name)
        return processes

    def _name_of(self, process: Path) -> str | None:
        try:
            words = process.joinpath("cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            return None
        if "worker" not in words or "--work-dir" not in words[:-1]:
            return None
        work = Path(words[words.index("--work-dir") + 1])
        return work.parent.name if work.parent.parent == self._folder else None

    async def destroy(self, provider_id: str) -> None:
        now = asyncio.get_running_loop().time()
        pid = (await asyncio.to_thread(self._processes)).get(provider_id)
        if pid is not None:
            asked_at = self._asked_to_stop.get(provider_id)
            if (
                asked_at is None or now - asked_at >= KILL_AFTER_S
            ):  # asked twice, it would leave its job behind
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM if asked_at is None else signal.SIGKILL)
            self._asked_to_stop.setdefault(provider_id, now)
            return
        self._asked_to_stop.pop(provider_id, None)
        if Path(provider_id).name == provider_id:
            await asyncio.to_thread(shutil.rmtree, self._folder / provider_id, True)

    async def boot_log(self, provider_id: str) -> str:
        return await asyncio.to_thread(end_of_file, self._folder / Path(provider_id).name / "log")
