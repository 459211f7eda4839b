"""Publishing to a Hub: what it is sent at once, and who gets its token."""

import asyncio
import hashlib

import httpx2
import pytest

from simpletuner_fleet.blobs.memory import MemoryBlobs
from simpletuner_fleet.core.publishing import Publish
from simpletuner_fleet.core.training.checkpoint import FileEntry
from simpletuner_fleet.storage.publish import hub as hub_module
from simpletuner_fleet.storage.publish.content import PublishedContent, PublishFailed
from simpletuner_fleet.storage.publish.hub import Hub
from tests.endless_server import endless_server
from tests.hub_server import LARGE_BYTES, TOKEN, HubServer


async def stored(files: dict[str, bytes]) -> PublishedContent:
    blobs, entries = MemoryBlobs(), []
    for path, content in files.items():
        sha256 = hashlib.sha256(content).hexdigest()
        await blobs.put_part("uploads/j_1/part", 0, content)
        assert await blobs.seal("uploads/j_1/part", sha256, len(content))
        entries.append(FileEntry(path=path, sha256=sha256, size=len(content)))
    return PublishedContent(blobs, tuple(entries))


async def publish(server: HubServer, files: dict[str, bytes]) -> str:
    async with httpx2.AsyncClient(trust_env=False) as http:
        hub = Hub(http, TOKEN, server.url)
        return await hub.publish(
            Publish(to="hf://someone/model"), "someone", "model", await stored(files), "a summary"
        )


async def test_many_files_are_committed_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "COMMIT_BYTES", 5000, raising=False)
    files = {f"{number}.txt": b"%d" % number * 900 for number in range(10)}
    files["empty.txt"] = b""
    files["large.safetensors"] = b"x" * (LARGE_BYTES + 1)
    server = HubServer()
    try:
        url = await publish(server, files)
    finally:
        server.close()
    assert server.repositories["someone/model"] == files
    assert len(server.commits) > 1
    assert url.endswith(f"/commit/c{len(server.commits)}")


@pytest.mark.parametrize(
    ("url", "is_hub"),
    [
        ("https://hub.example/x.git/verify", True),
        ("https://hub.example.elsewhere.example/verify", False),
        ("https://hub.example:444/verify", False),
        ("https://elsewhere.example/verify", False),
    ],
)
async def test_only_the_hub_itself_gets_its_token(url: str, is_hub: bool) -> None:
    """Not an address that begins like the Hub's, either: it says where an upload is verified."""
    heard: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        heard.append(request.headers.get("authorization", ""))
        return httpx2.Response(200, json={})

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as http:
        await Hub(http, TOKEN, "https://hub.example/")._call("POST", url, {})
    assert heard == [f"Bearer {TOKEN}" if is_hub else ""]


@pytest.mark.parametrize(("for_ever", "said"), [(b" " * 65536, "larger than"), (b"", "TimeoutError")])
async def test_an_answer_that_does_not_end_fails_and_keeps_nothing_from_being_published(
    for_ever: bytes, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "WHOLE_S", 30.0 if for_ever else 0.05, raising=False)
    wanted, content = Publish(to="hf://someone/model"), await stored({"model.bin": b"x"})
    async with (
        endless_server(lambda _: b" ", for_ever=for_ever) as url,
        httpx2.AsyncClient(trust_env=False) as http,
    ):
        with pytest.raises(PublishFailed, match=said) as failed:
            async with asyncio.timeout(20):
                await Hub(http, TOKEN, url).publish(wanted, "someone", "model", content, "a summary")
        assert not failed.value.hopeless
