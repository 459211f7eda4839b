"""Machines that are processes of this machine: found again by anybody, and gone when they are said to be."""

import asyncio
import os
import signal
from pathlib import Path

import httpx2
import pytest

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.providers.contract import MachineOrder, ProviderRefused, ProviderSurroundings
from simpletuner_fleet.providers.process import ProcessProvider
from simpletuner_fleet.providers.registry import make_provider
from tests.core.provisioning.provisioning_kit import a_pool

PASSED_ON = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
NOBODY = {"SIMPLETUNER_ORCHESTRATOR_URL": "http://127.0.0.1:9", "SIMPLETUNER_WORKER_TOKEN": "jt_none"}
UNUSED = httpx2.AsyncClient()


def surroundings(folder: Path, **settings: str) -> ProviderSurroundings:
    return ProviderSurroundings(
        pool=a_pool(settings=settings),
        key=None,
        folder=folder,
        environment={**PASSED_ON, "HOME": str(folder)},
        http=UNUSED,
    )


async def shown(provider: ProcessProvider) -> list[tuple[str, bool]]:
    return [(machine.name, machine.runs) for machine in await provider.machines()]


async def test_a_machine_is_found_by_a_new_provider_and_destroyed_with_its_folder(tmp_path: Path) -> None:
    made_with = surroundings(tmp_path, price="1.5")
    provider = ProcessProvider(made_with)
    (offer,) = await provider.offers()
    assert (offer.hourly_micros, offer.gpus) == (1_500_000, 0)
    order = MachineOrder(name="stf-f1-m1", offer=offer, environment=NOBODY)
    created = await provider.create(order)
    other = ProcessProvider(made_with)
    assert await shown(other) == [("stf-f1-m1", True)]
    with pytest.raises(ProviderRefused):
        await provider.create(order)
    await other.destroy(created.provider_id)
    async with asyncio.timeout(60):
        while await shown(other):
            await asyncio.sleep(0.1)
            await other.destroy(created.provider_id)
    assert list((tmp_path / "process").iterdir()) == []
    await other.destroy(created.provider_id)


async def test_one_that_ended_by_itself_is_listed_as_such_and_its_log_can_be_read(tmp_path: Path) -> None:
    provider = ProcessProvider(surroundings(tmp_path))
    order = MachineOrder(name="stf-f1-m2", offer=(await provider.offers())[0], environment=NOBODY)
    created = await provider.create(order)
    os.kill(provider._processes()["stf-f1-m2"], signal.SIGKILL)
    async with asyncio.timeout(60):
        while await shown(provider) != [("stf-f1-m2", False)]:
            await provider.boot_log(created.provider_id)
    assert isinstance(await provider.boot_log(created.provider_id), str)
    await provider.destroy(created.provider_id)
    assert await shown(provider) == []


def test_settings_that_are_not_known_or_no_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="no setting gpu, prize"):
        make_provider(surroundings(tmp_path, prize="1", gpu="1"))
    with pytest.raises(Invalid, match="'price': an amount is written"):
        make_provider(surroundings(tmp_path, price="cheap"))
    unknown = surroundings(tmp_path)
    with pytest.raises(Invalid, match="There is no provider 'nowhere'"):
        make_provider(
            ProviderSurroundings(
                pool=a_pool(provider="nowhere"),
                key=None,
                folder=tmp_path,
                environment={},
                http=unknown.http,
            )
        )


async def test_a_process_that_shuts_others_out_before_it_is_looked_at_is_made_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker does so as it starts; only root may look at it from then on."""
    provider = ProcessProvider(surroundings(tmp_path))
    order = MachineOrder(name="stf-f1-m3", offer=(await provider.offers())[0], environment=NOBODY)
    created = await provider.create(order)
    pid = provider._processes()["stf-f1-m3"]

    def refuses(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", refuses)
        provider._wait_until_shown("stf-f1-m3", pid)
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        while await shown(provider):
            await provider.destroy(created.provider_id)
            await asyncio.sleep(0.1)
