"""What a machine lacks for a moment, such as another open file, costs no checkpoint and no result."""

import asyncio
import errno
import os
from typing import Any

import pytest

from simpletuner_fleet.trainers.contract import Paths, Surroundings
from simpletuner_fleet.trainers.simpletuner.trainer import SimpleTunerTrainer
from tests.agent.object_server import ObjectServer
from tests.agent.ship.uploader_kit import checkpoint, connected, until, uploader


def lacking(monkeypatch: pytest.MonkeyPatch, call: str, number: int, times: int, name: str) -> list[int]:
    """A machine that cannot open or list this for so many times; returns what is left of them."""
    left, really = [number] * times, getattr(os, call)

    def refuse(path: Any, *how: Any, **more: Any) -> Any:
        if left and str(path).endswith(name):
            raise OSError(left.pop(), os.strerror(number))
        return really(path, *how, **more)

    monkeypatch.setattr(os, call, refuse)
    return left


@pytest.mark.parametrize(("number", "times"), [(errno.EMFILE, 20), (errno.EIO, 3)])
async def test_a_checkpoint_that_cannot_be_read_for_a_while_is_sent_after_it(
    paths: Paths, monkeypatch: pytest.MonkeyPatch, number: int, times: int
) -> None:
    checkpoint(paths, 10)
    left = lacking(monkeypatch, "open", number, times, "model")
    async with ObjectServer() as server, connected(server) as client:
        one = uploader(paths, client)
        running = asyncio.create_task(one.run())
        await until(lambda: one.checkpoint_step == 10)
        one.trainer_ended(with_artifacts=False)
        await asyncio.wait_for(running, 20)
    assert not left
    assert not one.left_something


async def test_a_config_that_cannot_be_read_for_a_while_costs_no_checkpoint(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the folder of the results."""
    checkpoint(paths, 10)
    paths.config_file.parent.mkdir(exist_ok=True)
    paths.config_file.write_text("{}")
    left = lacking(monkeypatch, "open", errno.EMFILE, 5, paths.config_file.name)
    async with ObjectServer() as server, connected(server) as client:
        one = uploader(paths, client)
        one.habits = SimpleTunerTrainer(Surroundings(environment={}, trainer_python="/no/such/python"))
        one.trainer_ended(with_artifacts=True)
        await asyncio.wait_for(one.run(), 20)
    assert not left
    assert one.checkpoint_step == 10
    assert not one.left_something


async def test_a_file_that_can_never_be_read_costs_itself_alone(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(paths, 10)
    checkpoint(paths, 20, weights=b"good")
    lacking(monkeypatch, "open", errno.EIO, 1_000, "model")
    async with ObjectServer() as server, connected(server) as client:
        one = uploader(paths, client)
        one.trainer_ended(with_artifacts=True)
        await asyncio.wait_for(one.run(), 20)
    assert one.checkpoint_step == 20
    assert "Input/output error" in one.not_sent["checkpoint-10"]


async def test_results_that_cannot_be_listed_for_a_while_are_not_taken_for_none(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    (paths.output_dir / "model.bin").write_bytes(b"weights")
    left = lacking(monkeypatch, "scandir", errno.EMFILE, 5, paths.output_dir.name)
    async with ObjectServer() as server, connected(server) as client:
        one = uploader(paths, client)
        one.trainer_ended(with_artifacts=True)
        await asyncio.wait_for(one.run(), 20)
    assert not left
    assert one.stored_something
    assert not one.left_something
