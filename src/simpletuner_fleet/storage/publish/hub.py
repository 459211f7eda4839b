"""Publishes to the Hugging Face Hub: makes a repository, sends large files to its LFS storage, commits them all.

Every step may be repeated: an existing repository is used, and content that is there is not sent again.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx2
import msgspec
from msgspec import Struct

from simpletuner_fleet.core.publishing import Publish
from simpletuner_fleet.core.training.checkpoint import FileEntry
from simpletuner_fleet.storage.publish.content import PublishedContent, PublishFailed, always_leads

HUB_URL = "https://huggingface.co"
SAMPLE_BYTES = 512
ASKED_AT_ONCE = 100
TIMEOUT = httpx2.Timeout(60.0, read=300.0)
WHOLE_S, SLOWEST_BYTES_PER_S = 600.0, 50e3
"""So long a whole exchange may take, and so slowly what is sent may go: an answer may come byte by byte for ever."""
MAX_ANSWER_BYTES = 8 * 1024 * 1024
LFS = {"Accept": "application/vnd.git-lfs+json", "Content-Type": "application/vnd.git-lfs+json"}
HOPELESS = frozenset({400, 401, 402, 403, 404, 413, 422})
"""What another try would be answered as well."""
MAY_NOT_MAKE = (401, 402, 403)
"""Answered to a token that may write to a repository and make none."""
BUSY = "conflicting operation is in progress"
"""The Hub makes one repository of an owner at a time, and says it with the status of one that is there."""
MAIN = "main"
COMMIT_BYTES = 32 * 1024 * 1024
"""Of files that are not large, in one commit: a job may have thousands of them, and all would be in memory."""


class Hub:
    def __init__(
        self,
        http: httpx2.AsyncClient,
        token: str,
        url: str = HUB_URL,
        insist_on_leading: Callable[[], None] = always_leads,
    ) -> None:
        """Takes `insist_on_leading`, which is called before every request."""
        self._http = http
        self._token = token
        self._insist_on_leading = insist_on_leading
        self._url = url.rstrip("/")

    async def publish(
        self, publish: Publish, owner: str, name: str, content: PublishedContent, summary: str
    ) -> str:
        """Publishes the files; returns the address of the repository as of this commit."""
        repo = f"{owner}/{name}"
        await self._make_repository(owner, name, private=publish.private)
        if publish.branch != MAIN:
            await self._call("POST", f"/api/models/{repo}/branch/{publish.branch}", {}, fine=(403, 409))
        large = await self._large(repo, publish.branch, content)
        for file in large:
            await self._send(repo, publish.branch, file, content)
        return await self._commit(repo, publish.branch, content, {file.path for file in large}, summary)

    async def _make_repository(self, owner: str, name: str, *, private: bool) -> None:
        """Makes the repository. An existing one is used, even where the token may not make any."""
        body = {"name": name, "organization": owner, "type": "model", "private": private}
        try:
            answer = await self._call("POST", "/api/repos/create", body, fine=(409,))
        except PublishFailed as refused:
            if refused.answered not in MAY_NOT_MAKE or not await self._is_there(f"{owner}/{name}"):
                raise
        else:
            if BUSY in str(answer.get("error")):
                raise PublishFailed("The Hub is busy creating another repository of this owner.")

    async def _is_there(self, repo: str) -> bool:
        try:
            await self._call("GET", f"/api/models/{repo}")
        except PublishFailed:
            return False
        return True

    async def _large(self, repo: str, branch: str, content: PublishedContent) -> list[FileEntry]:
        """Asks the Hub which files go to its LFS storage: it decides by size and ending. Empty files never do."""
        modes: dict[str, str] = {}
        for at in range(0, len(content.files), ASKED_AT_ONCE):
            asked = []
            for file in content.files[at : at + ASKED_AT_ONCE]:
                sample = base64.b64encode(await content.whole(file, SAMPLE_BYTES)).decode()
                asked.append({"path": file.path, "size": file.size, "sample": sample})
            answer = await self._call("POST", f"/api/models/{repo}/preupload/{branch}", {"files": asked})
            modes |= {one["path"]: one["uploadMode"] for one in answer["files"]}
        return [file for file in content.files if _is_large(file, modes)]

    async def _send(self, repo: str, branch: str, file: FileEntry, content: PublishedContent) -> None:
        body = {
            "operation": "upload",
            "transfers": ["basic", "multipart"],
            "objects": [{"oid": file.sha256, "size": file.size}],
            "hash_algo": "sha256",
            "ref": {"name": branch},
        }
        answer = await self._call("POST", f"/{repo}.git/info/lfs/objects/batch", body, headers=LFS)
        (document,) = answer["objects"]
        if document.get("error"):
            raise PublishFailed(
                f"The Hub rejected {file.path}: {document['error'].get('message')}.", hopeless=True
            )
        upload = (document.get("actions") or {}).get("upload")
        if upload is None:
            return
        headers = {str(key): str(value) for key, value in (upload.get("header") or {}).items()}
        if "chunk_size" in headers:
            await self._send_parts(upload["href"], headers, file, content)
        else:
            await self._put(upload["href"], headers, file, content, 0, file.size)
        verify = document["actions"].get("verify")
        if verify:
            await self._call("POST", verify["href"], {"oid": file.sha256, "size": file.size}, headers=LFS)

    async def _send_parts(
        self, complete_url: str, headers: dict[str, str], file: FileEntry, content: PublishedContent
    ) -> None:
        """Sends a large file in parts: the headers give the size of a part, and one address for each."""
        size = int(headers["chunk_size"])
        addresses = [
            url for _number, url in sorted((int(key), url) for key, url in headers.items() if key.isdecimal())
        ]
        if size < 1 or len(addresses) != -(-file.size // size):
            raise PublishFailed(
                f"The Hub returned another number of upload URLs ({len(addresses)}) than {file.path} has parts."
            )
        parts = []
        for at, url in enumerate(addresses):
            length = min(size, file.size - at * size)
            etag = await self._put(url, {}, file, content, at * size, length)
            if not etag:
                raise PublishFailed(f"The Hub's storage did not confirm the upload of {file.path}.")
            parts.append({"partNumber": at + 1, "etag": etag})
        await self._call("POST", complete_url, {"oid": file.sha256, "parts": parts}, headers=LFS, own=False)

    async def _put(
        self,
        url: str,
        headers: dict[str, str],
        file: FileEntry,
        content: PublishedContent,
        start: int,
        length: int,
    ) -> str:
        """Sends one part. The addresses of the storage behind the Hub are signed, so our token is not sent there."""

        async def pieces() -> AsyncIterator[bytes]:
            async for piece in content.read(file, start, length):
                yield piece

        said = {**headers, "Content-Length": str(length)}
        try:
            answer = await self._exchange("PUT", url, pieces(), said, length)
        except (httpx2.HTTPError, TimeoutError) as error:
            raise PublishFailed(f"{file.path} could not be uploaded ({type(error).__name__}).") from error
        _check(answer, (), what=file.path)
        return str(answer.headers.get("etag", ""))

    async def _commit(
        self, repo: str, branch: str, content: PublishedContent, large: set[str], summary: str
    ) -> str:
        """Commits all files, and returns the address of the last commit: few bytes at a time are held in memory."""
        header = msgspec.json.encode({"key": "header", "value": {"summary": summary, "description": ""}})
        lines, size, left, commit = [header], 0, len(content.files), ""
        for file in content.files:
            lines.append(msgspec.json.encode(await _commit_line(file, content, is_large=file.path in large)))
            size, left = size + len(lines[-1]), left - 1
            if left and size < COMMIT_BYTES:
                continue
            body = b"\n".join(lines) + b"\n"
            path = f"/api/models/{repo}/commit/{branch}"
            answer = await self._call("POST", path, body, headers={"Content-Type": "application/x-ndjson"})
            commit = str(answer.get("commitOid") or "")
            lines, size = [header], 0
        return f"{self._url}/{repo}" + (f"/commit/{commit}" if commit else "")

    async def _call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        fine: tuple[int, ...] = (),
        own: bool = True,
    ) -> dict[str, Any]:
        url = path if "://" in path else self._url + path
        sent = body if isinstance(body, bytes) else None if body is None else msgspec.json.encode(body)
        said = {"Content-Type": "application/json", **(headers or {})}
        if own and url.startswith(f"{self._url}/"):
            said["Authorization"] = f"Bearer {self._token}"
        try:
            answer = await self._exchange(method, url, sent, said, len(sent or b""))
        except (httpx2.HTTPError, TimeoutError) as error:
            raise PublishFailed(f"The Hub could not be reached ({type(error).__name__}).") from error
        _check(answer, fine, what="The Hub")
        try:
            document = msgspec.json.decode(answer.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return {}
        return document if isinstance(document, dict) else {}

    async def _exchange(
        self,
        method: str,
        url: str,
        content: bytes | AsyncIterator[bytes] | None,
        headers: Mapping[str, str],
        length: int,
    ) -> "_Answer":
        self._insist_on_leading()
        request = self._http.build_request(method, url, content=content, headers=headers, timeout=TIMEOUT)
        async with asyncio.timeout(WHOLE_S + length / SLOWEST_BYTES_PER_S):
            answer = await self._http.send(request, stream=True)
            try:
                body = bytearray()
                async for piece in answer.aiter_bytes():
                    body += piece
                    if len(body) > MAX_ANSWER_BYTES:
                        raise PublishFailed(f"The Hub's answer is larger than {MAX_ANSWER_BYTES} bytes.")
            finally:
                await answer.aclose()
        return _Answer(answer.status_code, answer.headers, bytes(body))


class _Answer(Struct, frozen=True):
    status_code: int
    headers: Mapping[str, str]
    """By names of any case."""
    body: bytes


def _is_large(file: FileEntry, modes: dict[str, str]) -> bool:
    return file.size > COMMIT_BYTES or (file.size > 0 and modes.get(file.path) == "lfs")


async def _commit_line(file: FileEntry, content: PublishedContent, *, is_large: bool) -> dict[str, Any]:
    if is_large:
        value = {"path": file.path, "algo": "sha256", "oid": file.sha256, "size": file.size}
        return {"key": "lfsFile", "value": value}
    text = base64.b64encode(await content.whole(file)).decode()
    return {"key": "file", "value": {"path": file.path, "content": text, "encoding": "base64"}}


def _check(answer: _Answer, fine: tuple[int, ...], *, what: str) -> None:
    if answer.status_code < 300 or answer.status_code in fine:
        return
    said = answer.headers.get("x-error-message") or answer.body.decode(errors="replace")[:200]
    wait = answer.headers.get("retry-after", "")
    raise PublishFailed(
        f"{what}: status {answer.status_code}, {said}".rstrip(", "),
        hopeless=answer.status_code in HOPELESS,
        answered=answer.status_code,
        wait_s=float(wait) if wait.isdecimal() else 0.0,
    )
