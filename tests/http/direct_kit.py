"""One attempt that sends a file straight to the bucket, by hand: a strict S3 and a real orchestrator."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from simpletuner_fleet.blobs.opening import open_blobs, open_direct
from simpletuner_fleet.core.training.direct import MIB
from simpletuner_fleet.storage.uploads.direct import DirectStorage
from tests.http.api_kit import Running, orchestrator
from tests.http.upload_kit import Uploader, sha
from tests.s3_gate import Gate
from tests.s3_server import BUCKET, CREDENTIALS

PART = 5 * MIB
LARGE = random.Random(1).randbytes(12 * MIB)
OTHER = random.Random(2).randbytes(12 * MIB)


def pieces(content: bytes) -> dict[int, bytes]:
    return {at // PART + 1: content[at : at + PART] for at in range(0, len(content), PART)}


def bucket_of(gate: Gate, tmp_path: Path, workers_url: str | None = None) -> DirectStorage:
    url = f"s3://{BUCKET}/{tmp_path.name}?endpoint={gate.endpoint}"
    blobs = open_direct(url, "workers", workers_url, CREDENTIALS)
    assert blobs is not None
    return DirectStorage(blobs=blobs)


@asynccontextmanager
async def with_bucket(
    gate: Gate, tmp_path: Path, workers_url: str | None = None, **choices: Any
) -> AsyncIterator[Running]:
    """The credentials must be in the environment: the client library looks for them there."""
    direct = bucket_of(gate, tmp_path, workers_url)
    await direct.prove()
    assert not direct.trouble
    gate.taken.clear()
    url = f"s3://{BUCKET}/{tmp_path.name}?endpoint={gate.endpoint}"
    blobs = open_blobs(url, tmp_path / "staging")
    try:
        async with orchestrator(blobs=blobs, direct=direct, **choices) as running:
            yield running
    finally:
        await direct.blobs.close()


class ByHand:
    """What the worker's half of the conversation is made of."""

    def __init__(self, up: Uploader, http: httpx2.AsyncClient) -> None:
        self.up, self._http = up, http
        up.agent.http.timeout = httpx2.Timeout(120)

    async def ask(self, content: bytes, part: bytes | None = None, number: int = 0, expect: int = 200) -> Any:
        body: dict[str, Any] = {
            "epoch": self.up.offer["epoch"],
            "size": len(content),
            "part_bytes": PART,
        }
        if part is not None:
            body["part"] = {"number": number, "sha256": sha(part)}
        return await self._post(f"objects/{sha(content)}/direct", body, expect)

    async def end(self, content: bytes, expect: int = 200) -> Any:
        body = {"epoch": self.up.offer["epoch"], "size": len(content)}
        return await self._post(f"objects/{sha(content)}/direct/end", body, expect)

    async def put(self, link: dict[str, Any], part: bytes, **headers: str) -> int:
        signed = {name: value for name, value in link["headers"].items() if name != "content-length"}
        answer = await self._http.put(link["url"], content=part, headers={**signed, **headers})
        return answer.status_code

    async def send(self, content: bytes, *numbers: int) -> None:
        """Sends these parts, or all."""
        for number, part in pieces(content).items():
            if not numbers or number in numbers:
                assert await self.put(await self.ask(content, part, number), part) == 200

    async def _post(self, path: str, body: dict[str, Any], expect: int) -> Any:
        answer = await self.up.agent.http.post(f"{self.up.base}/{path}", json=body, headers=self.up.headers)
        assert answer.status_code == expect, answer.text
        return answer.json()


async def staged(direct: DirectStorage | None) -> list[str]:
    assert direct is not None
    return [file.key async for file in direct.blobs.staged("direct/")]
