"""Makes the calls to S3 that our client library does not: multipart uploads by others, and copies that S3 digests."""

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NoReturn
from xml.etree import ElementTree

import httpx2
from msgspec import Struct

from simpletuner_fleet.blobs.s3_refusals import code_of, said_with
from simpletuner_fleet.blobs.s3_signing import Query, Signer, encoded_path
from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.ports.direct import StagedFile, StagedPart

ANSWER_S, CONNECT_S = 30.0, 10.0
COPY_BYTES_PER_S = 20e6
WHOLE_S = 600.0
"""For an answer that comes little by little: S3 sends blanks while it puts a large file together."""
MAX_ANSWER_BYTES = 8 * 1024 * 1024
NEXT_STEP = "Try again shortly. If it goes on, check SIMPLETUNER_STORAGE_URL and the bucket's credentials."
Document = ElementTree.Element


class BucketPlace(Struct, frozen=True, kw_only=True):
    """Names the endpoint and name of an S3 bucket, and the prefix of our keys in it."""

    endpoint: str
    """Without the bucket, which is the first segment of the path."""
    bucket: str
    prefix: str = ""

    def path(self, key: str) -> str:
        return f"/{self.bucket}/{self.whole_key(key)}"

    def whole_key(self, key: str) -> str:
        return f"{self.prefix}/{key}" if self.prefix else key

    def address(self, key: str) -> str:
        return self.endpoint.rstrip("/") + encoded_path(self.path(key))


class S3Requests:
    """Makes the calls to S3 that our client library does not make.

    Each method raises StoreUnavailable where S3 refuses or something else answers, and FileNotFoundError where there
    is no such thing.
    """

    def __init__(self, place: BucketPlace, signer: Signer) -> None:
        self._place = place
        self._signer = signer
        self._http = httpx2.AsyncClient(timeout=httpx2.Timeout(ANSWER_S, connect=CONNECT_S))

    async def close(self) -> None:
        await self._http.aclose()

    async def begin_upload(self, key: str) -> str:
        document = await self._call("POST", key, [("uploads", "")], {"x-amz-checksum-algorithm": "SHA256"})
        return _text(document, "UploadId")

    async def parts(self, key: str, upload_id: str) -> list[StagedPart]:
        query = [("uploadId", upload_id)]
        first = [("part-number-marker", "0")]
        pages = self._pages(key, query, {"part-number-marker": "NextPartNumberMarker"}, first)
        return [_part(element) async for page in pages for element in _all(page, "Part")]

    async def put_together(self, key: str, upload_id: str, parts: Sequence[StagedPart]) -> None:
        content = ElementTree.tostring(_completion(parts))
        await self._call("POST", key, [("uploadId", upload_id)], {}, content)

    async def abort_upload(self, key: str, upload_id: str) -> None:
        await self._call("DELETE", key, [("uploadId", upload_id)])

    async def delete(self, key: str) -> None:
        await self._call("DELETE", key, [])

    async def copy(self, key: str, to: str, size: int) -> str:
        """Returns the SHA-256 that S3 has computed of the copy; '' where it tells none."""
        source = encoded_path(self._place.path(key).lstrip("/"))
        headers = {"x-amz-copy-source": source, "x-amz-checksum-algorithm": "SHA256"}
        document = await self._call("PUT", to, [], headers, timeout_s=ANSWER_S + size / COPY_BYTES_PER_S)
        return hex_digest(_text(document, "ChecksumSHA256", ""))

    async def size(self, key: str) -> int:
        answer = await self._exchange("HEAD", key, [], {}, b"", ANSWER_S)
        length = answer.content_length
        return int(length) if length.isascii() and length.isdigit() else -1

    async def uploads(self, prefix: str) -> AsyncIterator[StagedFile]:
        query = [("uploads", ""), ("prefix", self._place.whole_key(prefix))]
        markers = {"key-marker": "NextKeyMarker", "upload-id-marker": "NextUploadIdMarker"}
        async for page in self._pages(None, query, markers):
            for element in _all(page, "Upload"):
                yield StagedFile(key=self._own_key(element), upload_id=_text(element, "UploadId"))

    async def keys(self, prefix: str) -> AsyncIterator[StagedFile]:
        query = [("list-type", "2"), ("prefix", self._place.whole_key(prefix))]
        async for page in self._pages(None, query, {"continuation-token": "NextContinuationToken"}):
            for element in _all(page, "Contents"):
                yield StagedFile(key=self._own_key(element))

    async def _pages(
        self,
        key: str | None,
        query: list[tuple[str, str]],
        markers: Mapping[str, str],
        first: Sequence[tuple[str, str]] = (),
    ) -> AsyncIterator[Document]:
        """Yields the answers that make up a list. `markers` says by which name an answer tells where the next begins.

        A place that was there before would lead round in a circle, and so would an empty one.
        """
        at, been = list(first), {tuple(first)}
        while True:
            document = await self._call("GET", key, [*query, *at])
            yield document
            if _text(document, "IsTruncated", "false") != "true":
                return
            at = [(name, _text(document, said)) for name, said in markers.items()]
            if tuple(at) in been or not any(value for _, value in at):
                raise _unlike_s3("a list that does not end")
            been.add(tuple(at))

    def _own_key(self, element: Document) -> str:
        return _text(element, "Key").removeprefix(self._place.whole_key(""))

    async def _call(
        self,
        method: str,
        key: str | None,
        query: Query,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
        timeout_s: float = ANSWER_S,
    ) -> Document:
        answer = await self._exchange(method, key, query, headers or {}, content, timeout_s)
        if not answer.content.strip():
            return Document("Empty")
        try:
            document = ElementTree.fromstring(answer.content)
        except ElementTree.ParseError as error:
            raise _unlike_s3("no XML") from error
        if _name(document) == "Error":
            # S3 begins to answer 200 before a long copy is done, and tells of its failure in the body.
            _refused(answer.status_code, answer.content)
        return document

    async def _exchange(
        self,
        method: str,
        key: str | None,
        query: Query,
        headers: Mapping[str, str],
        content: bytes,
        timeout_s: float,
    ) -> "S3Answer":
        place = self._place
        address = f"{place.endpoint.rstrip('/')}/{place.bucket}" if key is None else place.address(key)
        signed = self._signer.headers(method, address, query, headers, content, time.time())
        timeout = httpx2.Timeout(timeout_s, connect=CONNECT_S)
        request = self._http.build_request(
            method, address, params=list(query), headers=signed, content=content, timeout=timeout
        )
        try:
            answer = await whole_answer(self._http, request, timeout_s + WHOLE_S)
        except (httpx2.RequestError, TimeoutError) as error:
            raise _unlike_s3(type(error).__name__) from error
        if answer.status_code == 404:
            raise FileNotFoundError(key or place.bucket)
        if answer.status_code >= 300:
            _refused(answer.status_code, answer.content)
        return answer


class S3Answer(Struct, frozen=True):
    status_code: int
    content_length: str
    content: bytes


async def whole_answer(http: httpx2.AsyncClient, request: httpx2.Request, within_s: float) -> S3Answer:
    """Raises TimeoutError or StoreUnavailable for an answer that does not end."""
    async with asyncio.timeout(within_s):
        answer = await http.send(request, stream=True)
        try:
            content = bytearray()
            async for piece in answer.aiter_bytes():
                content += piece
                if len(content) > MAX_ANSWER_BYTES:
                    raise _unlike_s3("a very long answer")
        finally:
            await answer.aclose()
    return S3Answer(answer.status_code, answer.headers.get("content-length", ""), bytes(content))


def hex_digest(checksum: str) -> str:
    """Returns S3's form of a SHA-256 as ours; '' where it is none, as that of several parts is none of the whole."""
    try:
        return base64.b64decode(checksum, validate=True).hex()
    except ValueError:
        return ""


def _completion(parts: Sequence[StagedPart]) -> Document:
    root = Document("CompleteMultipartUpload", {"xmlns": "http://s3.amazonaws.com/doc/2006-03-01/"})
    for part in parts:
        element = ElementTree.SubElement(root, "Part")
        ElementTree.SubElement(element, "PartNumber").text = str(part.number)
        ElementTree.SubElement(element, "ETag").text = part.etag
        if part.sha256:
            ElementTree.SubElement(element, "ChecksumSHA256").text = part.sha256
    return root


def _part(element: Document) -> StagedPart:
    return StagedPart(
        number=_number(element, "PartNumber"),
        size=_number(element, "Size"),
        etag=_text(element, "ETag"),
        sha256=_text(element, "ChecksumSHA256", ""),
    )


def _refused(status: int, content: bytes) -> NoReturn:
    code = code_of(content)
    if code in ("NoSuchUpload", "NoSuchKey"):
        raise FileNotFoundError(code)
    raise _unlike_s3(said_with(status, content))


def _unlike_s3(what: str) -> StoreUnavailable:
    return StoreUnavailable(f"The S3 storage did not answer as it should ({what}).", next_step=NEXT_STEP)


def _name(element: Document) -> str:
    return element.tag.rpartition("}")[2]


def _all(document: Document, name: str) -> list[Document]:
    return [element for element in document if _name(element) == name]


def _text(document: Document, name: str, default: str | None = None) -> str:
    for element in document:
        if _name(element) == name:
            return element.text or ""
    if default is None:
        raise _unlike_s3(f"no {name}")
    return default


def _number(element: Document, name: str) -> int:
    text = _text(element, name)
    if not (text.isascii() and text.isdigit()):
        raise _unlike_s3(f"{name} is no number")
    return int(text)
