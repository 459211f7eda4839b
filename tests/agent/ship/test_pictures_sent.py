"""Pictures are sent as they come, and cost no checkpoint."""

import asyncio

from simpletuner_fleet.trainers.contract import Paths
from tests.agent.object_server import ObjectServer
from tests.agent.ship.uploader_kit import (
    checkpoint,
    connected,
    paths_sent,
    picture,
    until,
    uploader,
)


async def test_pictures_are_sent_as_they_come_and_only_the_new_ones_travel(paths: Paths) -> None:
    async with ObjectServer() as server, connected(server) as client:
        sending = uploader(paths, client)
        task = asyncio.create_task(sending.run())
        picture(paths, "validation_images/step_10.png", b"a" * 1000)
        await until(lambda: server.names == ["samples"])
        picture(paths, "validation_images/step_20.png", b"b" * 10)
        picture(paths, "model.bin", b"weights")
        await until(lambda: len(server.names) == 2)
        assert paths_sent(server.manifests[1]) == [
            "validation_images/step_10.png",
            "validation_images/step_20.png",
        ]
        assert server.bytes_in == 1010
        await asyncio.sleep(0.2)
        assert server.names == ["samples", "samples"], "nothing new, nothing said"
        sending.trainer_ended(with_artifacts=True)
        await asyncio.wait_for(task, 10)
        assert server.names == ["samples", "samples", "output"]


async def test_the_last_pictures_of_an_attempt_that_goes_on_elsewhere_are_sent_after_its_checkpoint(
    paths: Paths,
) -> None:
    async with ObjectServer() as server, connected(server) as client:
        picture(paths, "samples/step_10.png", b"late")
        checkpoint(paths, 10)
        sending = uploader(paths, client)
        sending.trainer_ended(with_artifacts=False)
        await asyncio.wait_for(sending.run(), 20)
        assert server.names == ["checkpoint-10", "samples"]


async def test_pictures_stand_back_for_a_checkpoint_that_comes_while_they_are_sent(paths: Paths) -> None:
    async with ObjectServer() as server, connected(server) as client:
        for number in range(5):
            picture(paths, f"samples/step_{number}.png", bytes([number]) * 100)
        sending = uploader(paths, client)
        requests = [0]

        def save_a_checkpoint_now() -> None:
            requests[0] += 1
            if requests[0] == 3:
                checkpoint(paths, 50)

        server.line = save_a_checkpoint_now
        task = asyncio.create_task(sending.run())
        await until(lambda: len(server.names) == 2)
        assert server.names == ["checkpoint-50", "samples"]
        assert len(paths_sent(server.manifests[1])) == 5
        sending.stop()
        await asyncio.wait_for(task, 10)


async def test_a_picture_that_the_orchestrator_has_lost_meanwhile_is_sent_again(paths: Paths) -> None:
    async with ObjectServer() as server, connected(server) as client:
        server.refusals = [("manifests", 409, "objects_missing")]
        picture(paths, "samples/step_1.png", b"a")
        sending = uploader(paths, client)
        task = asyncio.create_task(sending.run())
        await until(lambda: server.names == ["samples"])
        sending.stop()
        await asyncio.wait_for(task, 10)


async def test_pictures_that_are_refused_for_good_cost_no_checkpoint(paths: Paths) -> None:
    async with ObjectServer() as server, connected(server) as client:
        server.refusals = [("manifests", 413, "quota_exceeded")]
        picture(paths, "samples/step_1.png", b"a")
        sending = uploader(paths, client)
        task = asyncio.create_task(sending.run())
        await until(lambda: not server.refusals)
        checkpoint(paths, 5)
        await until(lambda: server.names == ["checkpoint-5"])
        sending.trainer_ended(with_artifacts=True)
        await asyncio.wait_for(task, 10)
        assert server.names == ["checkpoint-5", "output"]
