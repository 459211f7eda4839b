"""Publishes to folders and buckets: to the server's --publish-url, with one folder beneath it for each name."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import parse_qs, urlsplit

from simpletuner_fleet.core.training.checkpoint import FileEntry
from simpletuner_fleet.storage.publish.content import PublishedContent, PublishFailed

T = TypeVar("T")
THREADS = 8
_threads = ThreadPoolExecutor(THREADS, "publishing")
"""The folder may lie on a machine that does not answer, and what the storage works in must not wait for it."""


async def publish_to_place(root_url: str | None, name: str, content: PublishedContent) -> str:
    """Copies every file, and returns where they are. Copying the same files again changes nothing."""
    if not root_url:
        raise PublishFailed(
            "This server cannot publish to folders: it was started without --publish-url.", hopeless=True
        )
    parts = urlsplit(root_url)
    if parts.scheme == "file":
        return await _to_folder(Path(parts.path) / name, content)
    return await _to_bucket(root_url, name, content)


async def _to_folder(folder: Path, content: PublishedContent) -> str:
    """Writes each file so that it is whole under its name or not there: somebody may be reading the folder."""
    try:
        for file in content.files:
            target = folder / file.path
            making = _draft_of(target)
            try:
                await _write(making, file, content)
                await _in_thread(_put, making, target, content.insist_on_leading)
            except (OSError, PublishFailed):
                await _in_thread(_forget, making)  # it may be large, and nobody may ever go on with it
                raise
    except OSError as error:
        raise PublishFailed(f"The folder is not writable: {error.strerror or error}.") from error
    return folder.as_uri()


async def _write(making: Path, file: FileEntry, content: PublishedContent) -> None:
    out = await _in_thread(_begun, making)
    try:
        async for piece in content.read(file):
            await _in_thread(out.write, piece)
        await _in_thread(_sync, out)
    finally:
        await _in_thread(out.close)


async def _in_thread(work: Callable[..., T], *arguments: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(_threads, work, *arguments)


def _draft_of(target: Path) -> Path:
    """Returns where the file is made: beside it, under a name that is short whatever the file is called."""
    return target.with_name(f".{hashlib.sha256(target.name.encode()).hexdigest()[:16]}.part")


def _begun(making: Path) -> BinaryIO:
    making.parent.mkdir(parents=True, exist_ok=True)
    return making.open("wb")


def _forget(making: Path) -> None:
    with suppress(OSError):
        making.unlink()


def _sync(out: BinaryIO) -> None:
    out.flush()
    os.fsync(out.fileno())


def _put(making: Path, target: Path, insist_on_leading: Callable[[], None]) -> None:
    insist_on_leading()
    making.replace(target)


async def _to_bucket(root_url: str, name: str, content: PublishedContent) -> str:
    # Only who uses S3 pays for its library.
    import obstore
    from obstore.exceptions import BaseError
    from obstore.store import S3Store

    parts = urlsplit(root_url)
    options = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    endpoint = options.get("endpoint")
    prefix = "/".join(filter(None, (parts.path.strip("/"), name)))
    try:
        bucket = S3Store(
            parts.netloc,
            prefix=prefix,
            config={
                "region": options.get("region", "us-east-1"),
                **({"endpoint": endpoint} if endpoint else {}),
            },
            client_options={"allow_http": bool(endpoint and endpoint.startswith("http://"))},
        )
        for file in content.files:
            content.insist_on_leading()
            await obstore.put_async(bucket, file.path, _pieces(content, file), chunk_size=16 * 1024 * 1024)
    except (BaseError, OSError) as error:
        raise PublishFailed(f"The bucket rejected it ({type(error).__name__}).") from error
    return f"s3://{parts.netloc}/{prefix}"


async def _pieces(content: PublishedContent, file: Any) -> AsyncIterator[bytes]:
    async for piece in content.read(file):
        yield piece
