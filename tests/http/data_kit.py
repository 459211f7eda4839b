"""Somebody who pushes datasets, call by call."""

from typing import Any

import httpx2

from simpletuner_fleet.core.configs.datasets import canonical, id_of, prefixed_id
from simpletuner_fleet.core.training.checkpoint import FileEntry
from tests.http.upload_kit import sha

PETS = {"cats/1.png": b"cat" * 1000, "cats/2.png": b"cat" * 1000, "dogs/größe.png": b"dog", "empty.txt": b""}


def manifest_of(files: dict[str, bytes]) -> bytes:
    return canonical(FileEntry(path=path, size=len(data), sha256=sha(data)) for path, data in files.items())


def dataset_id(files: dict[str, bytes]) -> str:
    return prefixed_id(id_of(manifest_of(files)))


async def ask(http: httpx2.AsyncClient, *files: bytes) -> httpx2.Response:
    body = {"objects": [{"sha256": sha(data), "size": len(data)} for data in files]}
    return await http.post("/api/data/objects", json=body)


async def put(http: httpx2.AsyncClient, whole: bytes, start: int, end: int, **more: Any) -> httpx2.Response:
    return await http.put(
        f"/api/data/objects/{sha(whole)}",
        params={"offset": start, "size": len(whole), **more},
        content=whole[start:end],
        headers={"Content-Type": "application/octet-stream"},
    )


async def name(
    http: httpx2.AsyncClient, files: dict[str, bytes], called: str = "pets", **fields: str
) -> httpx2.Response:
    return await http.post("/api/data", json={"id": dataset_id(files), "name": called, **fields})


async def push(http: httpx2.AsyncClient, files: dict[str, bytes], called: str = "pets", **fields: str) -> str:
    for data in (*files.values(), manifest_of(files)):
        answer = await put(http, data, 0, len(data))
        assert answer.status_code == 200, answer.text
        assert answer.json()["complete"]
    answer = await name(http, files, called, **fields)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])
