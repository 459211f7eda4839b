"""A real server is killed between a message and the note of it: the message comes again, with the id it had."""

import asyncio
from pathlib import Path

from tests.delivery.receivers import hook
from tests.http.server_process import server_process

CONFIG = {"trainer": "command", "settings": {"command": ["true"]}, "resources": {"gpus": 0}}


async def test_a_message_that_was_sent_and_not_noted_comes_again_with_its_id(tmp_path: Path) -> None:
    home, allowed = tmp_path / "home", ("--notify-network", "127.0.0.0/8")
    async with hook() as receiver:
        receiver.frozen = True

        def begins() -> None:
            with server_process(home, *allowed) as server, server.client() as http:
                body = {"name": "siem", "channel": "webhook", "address": receiver.url, "events": ["audit"]}
                http.post("/api/notifications", json=body).raise_for_status()
                http.put("/api/configs/c", json=CONFIG).raise_for_status()
                asyncio.run_coroutine_threadsafe(receiver.has(1), loop).result(10)
                server.kill()

        def goes_on() -> None:
            with server_process(home, *allowed):
                asyncio.run_coroutine_threadsafe(receiver.has(3), loop).result(10)

        loop = asyncio.get_running_loop()
        await asyncio.to_thread(begins)
        receiver.frozen = False
        await asyncio.to_thread(goes_on)
        first, again, *_ = receiver.got
        assert first.headers["webhook-id"] == again.headers["webhook-id"]
        assert first.body == again.body
        sent = [one["seq"] for post in receiver.got[1:] for one in post.document["data"]["entries"]]
        assert sent == list(range(sent[0], sent[-1] + 1)), "nothing is left out, nothing comes twice"
