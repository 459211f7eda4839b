"""What our own calls to S3 make of answers that never end: of lists that go round, and of bodies that grow."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from simpletuner_fleet.blobs import s3_requests
from simpletuner_fleet.blobs.s3_requests import BucketPlace, S3Requests
from simpletuner_fleet.blobs.s3_signing import BucketKeys, Signer
from simpletuner_fleet.core.errors import StoreUnavailable
from tests.endless_server import endless_server

ASKED_AT_MOST = 5

Lists = Callable[[S3Requests], Any]


async def _parts(requests: S3Requests) -> list[Any]:
    return list(await requests.parts("key", "an-upload"))


async def _uploads(requests: S3Requests) -> list[Any]:
    return [one async for one in requests.uploads("direct/")]


async def _keys(requests: S3Requests) -> list[Any]:
    return [one async for one in requests.keys("direct/")]


@asynccontextmanager
async def answering(
    body: Callable[[int], bytes], *, for_ever: bytes | None = None
) -> AsyncIterator[S3Requests]:
    """Yields what calls a server that answers the n-th request with this body, and then with more of it for ever."""

    def limited(asked: int) -> bytes:
        assert asked <= ASKED_AT_MOST, "it would ask for ever"
        return body(asked)

    async with endless_server(limited, for_ever=for_ever) as url:
        place = BucketPlace(endpoint=url, bucket="bucket")
        requests = S3Requests(place, Signer(BucketKeys(access_key="key", secret_key="secret"), "us-east-1"))
        try:
            yield requests
        finally:
            await requests.close()


@pytest.mark.parametrize("listed", [_parts, _uploads, _keys])
@pytest.mark.parametrize("next_at", [b"the-same", b""])
async def test_a_list_whose_next_page_was_there_before_or_is_nowhere_ends(
    listed: Lists, next_at: bytes
) -> None:
    names = (b"NextPartNumberMarker", b"NextKeyMarker", b"NextUploadIdMarker", b"NextContinuationToken")
    markers = b"".join(b"<%b>%b</%b>" % (name, next_at, name) for name in names)
    page = b"<List><IsTruncated>true</IsTruncated>" + markers + b"</List>"
    async with answering(lambda _: page) as requests:
        with pytest.raises(StoreUnavailable, match="a list that does not end"):
            await asyncio.wait_for(listed(requests), 20)


async def test_a_list_that_goes_on_where_it_should_is_whole() -> None:
    def page(asked: int) -> bytes:
        more = b"<IsTruncated>true</IsTruncated><NextContinuationToken>%d</NextContinuationToken>" % asked
        return b"<List><Contents><Key>key-%d</Key></Contents>%b</List>" % (asked, more if asked < 3 else b"")

    async with answering(page) as requests:
        assert [one.key for one in await _keys(requests)] == ["key-1", "key-2", "key-3"]


async def test_an_answer_that_grows_for_ever_is_not_read_to_its_end() -> None:
    async with answering(lambda _: b"<List>", for_ever=b" " * 65536) as requests:
        with pytest.raises(StoreUnavailable, match="a very long answer"):
            await asyncio.wait_for(_keys(requests), 60)


async def test_an_answer_that_comes_byte_by_byte_is_waited_for_so_long_and_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(s3_requests, "WHOLE_S", 0.05 - s3_requests.ANSWER_S)
    async with answering(lambda _: b" ", for_ever=b"") as requests:
        with pytest.raises(StoreUnavailable, match="TimeoutError"):
            await asyncio.wait_for(requests.begin_upload("key"), 20)
