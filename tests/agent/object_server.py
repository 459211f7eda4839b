"""The orchestrator's side of uploads and downloads over real HTTP, with a network that can be cut at any byte."""

import asyncio
import hashlib
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

from simpletuner_fleet.protocol.problems import TYPE_PREFIX

PIECE = 64 * 1024


class Cut(Exception):
    """The line is dead."""


class ObjectServer:
    def __init__(self, *, keeping: bool = True) -> None:
        self.url = ""
        self._port = 0
        self.objects: dict[str, bytes] = {}
        self.manifests: list[dict[str, Any]] = []
        self.notes: list[dict[str, Any]] = []
        self.checkpoints_keep: int | None = None
        self.part_sizes: list[int] = []
        self.bytes_in = 0
        self.fetches: list[int] = []
        """The offset of each."""
        self.line: Callable[[], int | None] = lambda: None
        """Asked for each request: after how many bytes of content it is cut."""
        self.refusals: list[tuple[str, int, str]] = []
        """(word in the path, status, code); each is given once."""
        self.always: tuple[int, str] | None = None
        self._keeping = keeping
        self._parts: dict[str, bytearray] = {}
        self._seen: dict[str, tuple[Any, int]] = {}
        self._server: asyncio.Server | None = None
        self._lines: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def __aenter__(self) -> "ObjectServer":
        """It may be left and entered again: it comes back where it was."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for line in self._lines.values():
            line.transport.abort()
        await asyncio.gather(*self._lines)

    @property
    def names(self) -> list[str]:
        return [manifest["name"] for manifest in self.manifests]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._lines[task] = writer
        try:
            while True:
                await self._answer_one(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, Cut):
            writer.transport.abort()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        method, target, _ = head.split(" ", 2)
        length = next(
            (int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-length:")), 0
        )
        address = urlsplit(target)
        query = {key: values[0] for key, values in parse_qs(address.query).items()}
        if address.path.endswith("/link"):
            writer.write(response(200, {"url": ""}))
            await writer.drain()
            return
        cut_after = self.line()
        if method == "GET":
            await self._give(writer, address.path.split("/")[-1], int(query["offset"]), cut_after)
            return
        refusal = self.always or self._refusal(address.path)
        if address.path.endswith("/logs"):
            refusal = (503, "store_unavailable")  # it takes none
        if method == "PUT" and refusal is None:
            answer = await self._take(reader, length, address.path.split("/")[-1], query, cut_after)
        else:
            body = await reader.readexactly(length)
            if cut_after is not None:
                raise Cut
            answer = refusal or self._post(address.path, json.loads(body))
        writer.write(response(*answer) if isinstance(answer, tuple) else response(200, answer))
        await writer.drain()

    def _refusal(self, path: str) -> tuple[int, str] | None:
        for one in self.refusals:
            if one[0] in path:
                self.refusals.remove(one)
                return one[1:]
        return None

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        if path.endswith("/objects"):
            missing = [one["sha256"] for one in body["objects"] if one["sha256"] not in self.objects]
            return {"missing": [{"sha256": sha, "offset": self._have(sha)} for sha in missing]}
        if path.endswith("/notes"):
            self.notes += body["notes"]
            return {"stored": len(self.notes)}
        manifest = body["manifest"]
        if any(file["sha256"] not in self.objects for file in manifest["files"]):
            return (409, "objects_missing")
        if manifest not in self.manifests:
            self.manifests.append(manifest)
        return {
            "manifest_id": f"m_{self.manifests.index(manifest)}",
            "accepted": True,
            "checkpoints_keep": self.checkpoints_keep,
        }

    def _have(self, sha256: str) -> int:
        return len(self._parts.get(sha256, b"")) if self._keeping else self._seen.get(sha256, (None, 0))[1]

    async def _take(
        self,
        reader: asyncio.StreamReader,
        length: int,
        sha256: str,
        query: dict[str, str],
        cut_after: int | None,
    ) -> Any:
        offset, size = int(query["offset"]), int(query["size"])
        assert offset == self._have(sha256), "parts are sent from where the server is"
        self.part_sizes.append(length)
        left = length
        while left:
            if cut_after is not None and length - left >= cut_after:
                raise Cut
            data = await reader.readexactly(min(PIECE, left, cut_after or PIECE))
            self._keep(sha256, data)
            left -= len(data)
        if cut_after is not None:
            raise Cut
        if self._have(sha256) < size:
            return {"next_offset": self._have(sha256), "complete": False}
        return self._seal(sha256, size)

    def _keep(self, sha256: str, data: bytes) -> None:
        self.bytes_in += len(data)
        if self._keeping:
            self._parts.setdefault(sha256, bytearray()).extend(data)
            return
        digest, have = self._seen.get(sha256, (hashlib.sha256(), 0))
        digest.update(data)
        self._seen[sha256] = (digest, have + len(data))

    def _seal(self, sha256: str, size: int) -> Any:
        content = bytes(self._parts.pop(sha256, b""))
        known = hashlib.sha256(content) if self._keeping else self._seen.pop(sha256, (hashlib.sha256(), 0))[0]
        if known.hexdigest() != sha256:
            return (422, "digest_mismatch")
        self.objects[sha256] = content
        return {"next_offset": size, "complete": True}

    async def _give(
        self, writer: asyncio.StreamWriter, sha256: str, offset: int, cut_after: int | None
    ) -> None:
        self.fetches.append(offset)
        if sha256 not in self.objects:
            writer.write(response(404, "not_found"))
            return
        content = self.objects[sha256][offset:]
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(content)}\r\n\r\n".encode())
        writer.write(content if cut_after is None else content[:cut_after])
        await writer.drain()
        if cut_after is not None:
            writer.close()
            raise Cut


def response(status: int, content: Any) -> bytes:
    problem = {
        "type": f"{TYPE_PREFIX}{content}",
        "status": status,
        "code": content,
        "detail": f"it says {content}",
    }
    body = problem if isinstance(content, str) else content
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data
