"""Files that are added to a stored checkpoint are sent; a checkpoint that is being removed costs the stored one nothing."""

import asyncio

from simpletuner_fleet.trainers.contract import Paths
from tests.agent.object_server import ObjectServer
from tests.agent.ship.uploader_kit import checkpoint, connected, paths_sent, until, uploader


async def test_what_is_added_at_the_end_is_sent_with_the_rest(paths: Paths) -> None:
    folder = checkpoint(paths, 1, model=b"weights", optimizer=b"moments")
    async with ObjectServer() as server, connected(server) as client:
        sending = uploader(paths, client)
        task = asyncio.create_task(sending.run())
        await until(lambda: len(server.manifests) == 1)
        (folder / "picture.png").write_bytes(b"drawn")
        sending.trainer_ended(with_artifacts=False)
        await asyncio.wait_for(task, 10)
        assert [paths_sent(one) for one in server.manifests] == [
            [".guard", "model", "optimizer"],
            [".guard", "model", "optimizer", "picture.png"],
        ]


async def test_a_trainer_that_is_killed_while_it_removes_an_old_checkpoint_leaves_the_stored_one_whole(
    paths: Paths,
) -> None:
    """It keeps the newest few: what is left of the others is no newer version of what is stored."""
    folder = checkpoint(paths, 1, model=b"weights", optimizer=b"moments")
    async with ObjectServer() as server, connected(server) as client:
        sending = uploader(paths, client)
        task = asyncio.create_task(sending.run())
        await until(lambda: len(server.manifests) == 1)
        (folder / "model").unlink()
        sending.trainer_ended(with_artifacts=False)
        await asyncio.wait_for(task, 10)
        assert [paths_sent(one) for one in server.manifests] == [[".guard", "model", "optimizer"]]
        assert not sending.left_something
