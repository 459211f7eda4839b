"""One attempt's side of the upload protocol."""

import hashlib
from typing import Any

from tests.http.api_kit import Agent, Running

WEIGHTS = bytes(range(256)) * 100
STATE = b"optimizer state"


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def entry(path: str, data: bytes) -> dict[str, Any]:
    return {"path": path, "size": len(data), "sha256": sha(data)}


class Uploader:
    """One attempt's side of the protocol."""

    def __init__(self, agent: Agent, offer: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        self.agent = agent
        self.offer = offer
        self.base = f"/api/workers/job/{offer['job_id']}"
        self.headers = headers or {}

    async def ask(self, *files: bytes, expect: int = 200) -> Any:
        body = {
            "epoch": self.offer["epoch"],
            "objects": [{"sha256": sha(data), "size": len(data)} for data in files],
        }
        answer = await self.agent.http.post(f"{self.base}/objects", json=body, headers=self.headers)
        assert answer.status_code == expect, answer.text
        return answer.json()

    async def put(self, whole: bytes, start: int, end: int, expect: int = 200, **more: Any) -> Any:
        query = {"epoch": self.offer["epoch"], "offset": start, "size": len(whole), **more}
        answer = await self.agent.http.put(
            f"{self.base}/objects/{sha(whole)}",
            params=query,
            content=whole[start:end],
            headers={"Content-Type": "application/octet-stream", **self.headers},
        )
        assert answer.status_code == expect, answer.text
        return answer.json()

    async def send(self, *files: bytes) -> None:
        for data in files:
            assert (await self.put(data, 0, len(data)))["complete"]

    async def manifest(
        self, step: int | None, files: dict[str, bytes], expect: int = 200, **more: Any
    ) -> Any:
        manifest = {
            "kind": "checkpoint",
            "name": f"checkpoint-{step}",
            "step": step,
            "files": [entry(path, data) for path, data in files.items()],
            **more,
        }
        body = {"epoch": self.offer["epoch"], "manifest": manifest}
        answer = await self.agent.http.post(f"{self.base}/manifests", json=body, headers=self.headers)
        assert answer.status_code == expect, answer.text
        return answer.json()

    async def checkpoint(self, step: int, files: dict[str, bytes] | None = None, **more: Any) -> str:
        files = files or {"model.bin": WEIGHTS + str(step).encode(), "state.bin": STATE}
        await self.send(*files.values())
        return str((await self.manifest(step, files, **more))["manifest_id"])

    async def fetch(self, data: bytes, offset: int = 0) -> Any:
        return await self.agent.http.get(
            f"{self.base}/objects/{sha(data)}", params={"offset": offset}, headers=self.headers
        )


async def uploading(running: Running, name: str = "gpu-1", **options: Any) -> Uploader:
    agent = await running.worker(name)
    await running.submit(**options)
    return Uploader(agent, await agent.take())
