"""Logs in a bucket: segments leave the folder as they fill, and reading knows no border."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import PermissionDeniedError
from obstore.store import S3Store

from simpletuner_fleet.blobs.folder import FolderBlobs
from simpletuner_fleet.blobs.opening import open_blobs
from simpletuner_fleet.blobs.s3_logs import MOST_FAILURES, SEGMENTS, S3Logs
from simpletuner_fleet.core.errors import StoreUnavailable
from tests.s3_server import KEY, SECRET


@pytest.fixture
def bucket(s3_endpoint: str, tmp_path: Path) -> S3Store:
    return S3Store(
        "bucket",
        prefix=f"logs-{tmp_path.name}",
        config={
            "region": "us-east-1",
            "endpoint": s3_endpoint,
            "access_key_id": KEY,
            "secret_access_key": SECRET,
        },
        client_options={"allow_http": True},
    )


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def logs_in(bucket: S3Store, folder: Path, clock: Clock | None = None) -> S3Logs:
    return S3Logs(bucket, FolderBlobs(folder), segment_bytes=1000, idle_s=60, clock=clock or Clock())


async def in_bucket(bucket: S3Store) -> list[tuple[str, int]]:
    return sorted(
        [
            (meta["path"].removeprefix(f"{SEGMENTS}/"), meta["size"])
            async for page in obstore.list(bucket)
            for meta in page
        ]
    )


def in_folder(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder / SEGMENTS)) for path in folder.rglob("*") if path.is_file())


async def test_segments_leave_the_folder_as_they_fill_and_the_rest_when_nothing_comes(
    bucket: S3Store, tmp_path: Path
) -> None:
    clock = Clock()
    logs = logs_in(bucket, tmp_path, clock)
    content = bytes(random.Random(1).randbytes(2500))
    for at in range(0, 2500, 500):
        assert await logs.append("logs/a", at, content[at : at + 500]) == at + 500
    await logs.send_due_once()
    assert await in_bucket(bucket) == [
        ("logs/a/000000000000000", 1000),
        ("logs/a/000000000001000", 1000),
    ]
    assert in_folder(tmp_path) == ["logs/a/000000000002000"]
    assert await logs.read("logs/a", 900, 1400) == content[900:2300]
    clock.now = 61.0
    await logs.send_due_once()
    assert in_folder(tmp_path) == []
    assert await logs.size("logs/a") == 2500
    assert await logs.read("logs/a", 0, 10_000) == content
    assert await logs.append("logs/a", 2400, content[2400:] + b"more") == 2504
    assert await logs.read("logs/a", 2490, 100) == content[2490:] + b"more"


async def test_another_process_goes_on_with_what_is_in_both_places(bucket: S3Store, tmp_path: Path) -> None:
    first = logs_in(bucket, tmp_path)
    await first.append("logs/a", 0, b"x" * 1200)
    await first.append("logs/a", 1200, b"y" * 300)
    await first.send_due_once()
    await first.append("logs/b", 0, b"left")
    second = logs_in(bucket, tmp_path)
    assert await second.size("logs/a") == 1500
    assert await second.append("logs/a", 1500, b"z" * 10) == 1510
    assert await second.read("logs/a", 1190, 400) == b"x" * 10 + b"y" * 300 + b"z" * 10
    clock = Clock()
    third = logs_in(bucket, tmp_path, clock)
    await third.send_due_once()
    clock.now = 100.0
    await third.send_due_once()
    assert in_folder(tmp_path) == []
    assert await third.read("logs/b", 0, 10) == b"left"


class SlowToDelete(FolderBlobs):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.deletes = asyncio.Event()

    async def delete(self, prefix: str) -> None:
        self.deletes.set()
        await asyncio.sleep(0.2)
        await super().delete(prefix)


async def test_who_asks_for_what_is_due_waits_for_what_another_is_sending(
    bucket: S3Store, tmp_path: Path
) -> None:
    staging = SlowToDelete(tmp_path)
    logs = S3Logs(bucket, staging, segment_bytes=1000)
    await logs.append("logs/a", 0, b"x" * 1000)
    await staging.deletes.wait()
    await logs.send_due_once()
    assert in_folder(tmp_path) == []


async def test_a_segment_that_was_sent_and_not_removed_is_no_harm(bucket: S3Store, tmp_path: Path) -> None:
    first = logs_in(bucket, tmp_path)
    await first.append("logs/a", 0, b"x" * 1000)
    await obstore.put_async(bucket, f"{SEGMENTS}/logs/a/000000000000000", b"x" * 1000)
    second = logs_in(bucket, tmp_path)
    assert await second.size("logs/a") == 1000
    assert in_folder(tmp_path) == []
    assert await second.append("logs/a", 1000, b"y") == 1001
    assert await second.read("logs/a", 999, 9) == b"xy"


async def test_repeats_are_harmless_and_holes_are_not_written(bucket: S3Store, tmp_path: Path) -> None:
    logs = logs_in(bucket, tmp_path)
    assert await logs.append("logs/a", 0, b"one") == 3
    assert await logs.append("logs/a", 0, b"one") == 3
    assert await logs.append("logs/a", 9, b"late") == 3
    assert await logs.append("logs/a", 1, b"ne!") == 4
    assert await logs.read("logs/a", 0, 9) == b"one!"
    assert await logs.read("logs/unknown", 0, 9) == b""


async def test_what_is_deleted_is_gone_from_both_places(bucket: S3Store, tmp_path: Path) -> None:
    logs = logs_in(bucket, tmp_path)
    await logs.append("logs/a", 0, b"x" * 1100)
    await logs.send_due_once()
    await logs.append("logs/a", 1100, b"y")
    await logs.delete("logs/a")
    assert await in_bucket(bucket) == []
    assert in_folder(tmp_path) == []
    assert await logs.size("logs/a") == 0


class Refusing:
    """A bucket that refuses to delete one object."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._delete: Callable[..., Coroutine[Any, Any, None]] = obstore.delete_async

    async def __call__(self, bucket: S3Store, place: str) -> None:
        if self._place in place:
            raise PermissionDeniedError("The object is locked.")
        await self._delete(bucket, place)


async def test_a_segment_that_the_bucket_refuses_to_delete_keeps_no_other_and_goes_later(
    bucket: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = logs_in(bucket, tmp_path)
    for at in range(0, 3000, 1000):
        await logs.append("logs/a", at, b"x" * 1000)
    await logs.send_due_once()
    await logs.append("logs/a", 3000, b"y")
    with monkeypatch.context() as patch:
        patch.setattr(obstore, "delete_async", Refusing("logs/a/000000000001000"))
        with pytest.raises(StoreUnavailable):
            await logs.delete("logs/a")
        await logs.send_due_once()
    assert await in_bucket(bucket) == [("logs/a/000000000001000", 1000)]
    assert in_folder(tmp_path) == []
    await logs_in(bucket, tmp_path).delete("logs/a")
    assert await in_bucket(bucket) == []


@pytest.mark.parametrize("bad", [1, MOST_FAILURES + 1])
async def test_logs_that_cannot_be_sent_keep_no_other_from_being_sent(
    bucket: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: int
) -> None:
    puts = obstore.put_async

    async def refusing(bucket: S3Store, place: str, data: bytes) -> object:
        if "/bad" in place:
            raise PermissionDeniedError("The object is locked.")
        return await puts(bucket, place, data)

    logs = logs_in(bucket, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(obstore, "put_async", refusing)
        for number in range(bad):
            await logs.append(f"logs/bad{number}", 0, b"x" * 1000)
        await logs.append("logs/good", 0, b"x" * 1000)
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await logs.send_due_once()
    assert await in_bucket(bucket) == [("logs/good/000000000000000", 1000)]
    for _ in range(2):
        await logs.send_due_once()
    assert in_folder(tmp_path) == []


async def test_files_that_are_not_ours_are_no_segments(bucket: S3Store, tmp_path: Path) -> None:
    """A folder on another machine has some for a while: what was deleted while somebody read it."""
    await logs_in(bucket, tmp_path).append("logs/a", 0, b"x" * 1000)
    (tmp_path / SEGMENTS / "logs" / "a" / ".nfs0000000000000001").write_bytes(b"gone")
    await obstore.put_async(bucket, f"{SEGMENTS}/logs/a/README", b"theirs")
    again = logs_in(bucket, tmp_path)
    await again.send_due_once()
    assert await again.size("logs/a") == 1000
    assert ("logs/a/000000000000000", 1000) in await in_bucket(bucket)


async def test_while_the_bucket_is_away_a_log_goes_on_growing(bucket: S3Store, tmp_path: Path) -> None:
    logs = logs_in(bucket, tmp_path)
    await logs.append("logs/a", 0, b"x" * 1000)
    logs._bucket = S3Store(
        "bucket",
        config={"endpoint": "http://127.0.0.1:1", "access_key_id": KEY, "secret_access_key": SECRET},
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    with pytest.raises(StoreUnavailable):
        await logs.send_due_once()
    assert await logs.append("logs/a", 1000, b"y" * 1000) == 2000
    logs._bucket = bucket
    await logs.send_due_once()
    assert len(await in_bucket(bucket)) == 2
    assert await logs.read("logs/a", 995, 10) == b"x" * 5 + b"y" * 5


async def test_only_logs_go_that_way(
    s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    blobs = open_blobs(f"s3://bucket/only-{tmp_path.name}?endpoint={s3_endpoint}", tmp_path)
    await blobs.append("metrics/a", 0, b"m")
    await blobs.append("logs/a", 0, b"l")
    assert (tmp_path / "metrics" / "a").read_bytes() == b"m"
    assert (tmp_path / SEGMENTS / "logs" / "a" / "000000000000000").read_bytes() == b"l"
    assert (await blobs.size("logs/a"), await blobs.read("logs/a", 0, 9)) == (1, b"l")
    await blobs.delete("logs/a")
    assert await blobs.size("logs/a") == 0


async def test_bytes_that_are_taken_back_leave_the_folder_and_the_bucket(
    bucket: S3Store, tmp_path: Path
) -> None:
    logs = logs_in(bucket, tmp_path)
    content = bytes(random.Random(3).randbytes(2500))
    for at in range(0, 2500, 500):
        await logs.append("logs/a", at, content[at : at + 500])
    await logs.send_due_once()
    await logs.truncate("logs/a", 1300)
    assert await in_bucket(bucket) == [("logs/a/000000000000000", 1000)]
    assert await logs.read("logs/a", 0, 5000) == content[:1300]
    again = logs_in(bucket, tmp_path)
    assert await again.read("logs/a", 0, 5000) == content[:1300]
    assert await again.append("logs/a", 1300, b"tail") == 1304
    assert await again.read("logs/a", 1200, 200) == content[1200:1300] + b"tail"
    await again.truncate("logs/a", 0)
    assert await in_bucket(bucket) == []
    assert await logs_in(bucket, tmp_path).size("logs/a") == 0


class BucketThatWaits:
    """Holds each put back until `let_go` is set, and says when one has begun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.let_go, self.done = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._put: Callable[..., Coroutine[Any, Any, object]] = obstore.put_async
        monkeypatch.setattr(obstore, "put_async", self._put_late)

    async def _put_late(self, *arguments: Any) -> object:
        self.begun.set()
        await self.let_go.wait()
        result = await self._put(*arguments)
        self.done.set()
        return result


async def test_what_is_deleted_while_it_is_sent_does_not_come_back(
    bucket: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = BucketThatWaits(monkeypatch)
    logs = logs_in(bucket, tmp_path)
    await logs.append("logs/a", 0, b"x" * 1000)
    await logs.append("logs/a", 1000, b"y" * 1000)
    await slow.begun.wait()
    deletion = asyncio.create_task(logs.delete("logs/a"))
    await asyncio.wait([deletion], timeout=0.3)
    slow.let_go.set()
    await deletion
    await logs.send_due_once()
    assert (await in_bucket(bucket), in_folder(tmp_path)) == ([], [])
    assert await logs.append("logs/a", 0, b"new") == 3


async def test_bytes_that_are_taken_back_while_they_are_sent_do_not_come_back(
    bucket: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = BucketThatWaits(monkeypatch)
    logs = logs_in(bucket, tmp_path)
    await logs.append("logs/a", 0, b"x" * 1000)
    await slow.begun.wait()

    async def replace_the_end() -> None:
        await logs.truncate("logs/a", 500)
        await logs.append("logs/a", 500, b"z" * 500)

    replacing = asyncio.create_task(replace_the_end())
    await asyncio.wait([replacing], timeout=1)
    slow.let_go.set()
    await replacing
    await slow.done.wait()
    while logs._growing["logs/a"].waits:
        await logs.send_due_once()
    assert await logs_in(bucket, tmp_path).read("logs/a", 0, 2000) == b"x" * 500 + b"z" * 500


async def test_a_segment_sent_by_two_at_once_is_whole(
    bucket: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = BucketThatWaits(monkeypatch)
    logs = logs_in(bucket, tmp_path)
    await logs.append("logs/a", 0, b"x" * 1000)
    await slow.begun.wait()
    async with logs._locks.holding(
        "logs/a"
    ):  # the first sender has put the segment, and the second has not looked yet
        slow.let_go.set()
        await slow.done.wait()
        second = asyncio.create_task(logs.send_due_once())
        await asyncio.wait([second], timeout=0.3)
    await second
    assert [size for _, size in await in_bucket(bucket)] == [1000]
    assert await logs.read("logs/a", 0, 2000) == b"x" * 1000


async def test_a_put_without_an_answer_brings_nothing_back(
    bucket: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put: Callable[..., Coroutine[Any, Any, object]] = obstore.put_async

    async def put_and_say_nothing(*arguments: Any) -> object:
        await put(*arguments)
        raise OSError("the answer was lost")

    logs = logs_in(bucket, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(obstore, "put_async", put_and_say_nothing)
        await logs.append("logs/a", 0, b"x" * 1000)
        await logs.append("logs/b", 0, b"x" * 1000)
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await logs.send_due_once()
            await logs.truncate("logs/a", 400)
    await logs.delete("logs/b")
    assert await in_bucket(bucket) == []
    assert await logs_in(bucket, tmp_path).read("logs/a", 0, 2000) == b"x" * 400


async def test_logs_are_listed_wherever_their_bytes_are(bucket: S3Store, tmp_path: Path) -> None:
    logs = logs_in(bucket, tmp_path)
    await logs.append("logs/a_1", 0, b"x" * 1000)
    await logs.send_due_once()
    await logs.append("logs/a_1.r200", 0, b"y")
    await logs.append("logs/a_1", 1000, b"z")
    assert in_folder(tmp_path) == ["logs/a_1.r200/000000000000000", "logs/a_1/000000000001000"]
    assert await logs.names("logs") == ["a_1", "a_1.r200"]
    assert await logs.names("metrics") == []
