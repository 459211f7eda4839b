"""What a part on another node prints arrives whole at the first node, whatever happens to the line between them."""

import asyncio
import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.agent.nodes import part_output, ranks
from simpletuner_fleet.agent.nodes.members import NodeMember
from simpletuner_fleet.agent.nodes.messages import FromFollower, Printed, PrintedSoFar, RankEnded
from simpletuner_fleet.agent.nodes.part_output import PartOutput
from simpletuner_fleet.agent.nodes.ranks import NodePart, NodeParts
from simpletuner_fleet.agent.nodes.spanned import FollowerPart
from simpletuner_fleet.core.jobs.job import EndReason
from simpletuner_fleet.trainers.contract import NodeSpan
from tests.agent.answering import OFFER
from tests.http.api_kit import until

OUTPUT = b"".join(b"line %06d\n" % number for number in range(60_000))


class FirstNode:
    """Keeps what arrives in order; `loses` counts down to the message that a dying connection takes with it."""

    def __init__(self, loses: int) -> None:
        self.loses = loses
        self.kept = bytearray()
        self.ends: list[RankEnded] = []

    def tell(self, message: FromFollower) -> bool:
        if isinstance(message, RankEnded):
            self.ends.append(message)
        if not isinstance(message, Printed):
            return True
        self.loses -= 1
        if self.loses == 0:
            return True  # written to a socket that is dead already
        if message.offset == len(self.kept):
            self.kept += message.data
        return True


def part_that_printed(tmp_path: Path, first: FirstNode) -> tuple[NodeParts, NodePart]:
    """A follower's part alone, without the machine around it."""
    parts = object.__new__(NodeParts)
    rank = NodePart(OFFER, PartOutput(tmp_path / "output.log"))
    parts._ranks, parts._tell = {rank.turn: rank}, first.tell
    rank.output.path.write_bytes(OUTPUT)
    return parts, rank


async def test_a_line_that_is_dialled_anew_while_output_is_read_loses_and_mixes_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = FirstNode(loses=2)
    parts, rank = part_that_printed(tmp_path, first)
    loop, read = asyncio.get_running_loop(), rank.output.piece
    welcomed: list[int] = []

    def slow_read(offset: int) -> tuple[int, bytes | None]:
        piece = read(offset)
        if offset > len(first.kept) and not welcomed:  # what was sent last is lost, and nobody knows yet
            welcomed.append(offset)
            so_far = PrintedSoFar(job_id=OFFER.job_id, epoch=OFFER.epoch, offset=len(first.kept))
            asyncio.run_coroutine_threadsafe(_welcome(parts, so_far), loop).result(10)
        return piece

    monkeypatch.setattr(rank.output, "piece", slow_read)
    rank.over = True
    await asyncio.wait_for(parts._print(rank), 20)
    assert welcomed
    assert bytes(first.kept) == OUTPUT


async def _welcome(parts: NodeParts, so_far: PrintedSoFar) -> None:
    parts.welcomed([so_far])


async def test_an_end_is_said_by_one_task_however_often_the_line_is_dialled_anew(tmp_path: Path) -> None:
    first = FirstNode(loses=0)
    parts, rank = part_that_printed(tmp_path, first)
    rank.over = True
    rank.ended = RankEnded(job_id=OFFER.job_id, epoch=OFFER.epoch, reason=EndReason.EXITED, exit_code=0)
    for _ in range(3):
        parts.welcomed([PrintedSoFar(job_id=OFFER.job_id, epoch=OFFER.epoch, offset=0)])
        await asyncio.sleep(0)
    await until(lambda: bool(first.ends))
    assert rank.task
    await rank.task
    assert len(first.ends) == 1
    assert bytes(first.kept) == OUTPUT


async def test_a_flood_does_not_fill_the_disk_of_the_node_that_prints_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_output, "SENT_KEPT_BYTES", 2**20)
    monkeypatch.setattr(part_output, "FREED_AT_ONCE_BYTES", 2**20)
    first = FirstNode(loses=0)
    parts, rank = part_that_printed(tmp_path, first)
    flood = OUTPUT * 10
    rank.output.path.write_bytes(flood)
    rank.over = True
    await asyncio.wait_for(parts._print(rank), 20)
    assert bytes(first.kept) == flood
    stat = rank.output.path.stat()
    assert (stat.st_size, stat.st_blocks * 512 < 3 * 2**20) == (len(flood), True)
    assert rank.output.path.read_bytes()[-(2**20) :] == flood[-(2**20) :]


@pytest.mark.parametrize("after", [b"x\n", b"something that is longer than what there was before\n"])
async def test_what_a_part_prints_after_it_has_emptied_its_output_follows_what_was_sent(
    tmp_path: Path, after: bytes
) -> None:
    first = FirstNode(loses=0)
    parts, rank = part_that_printed(tmp_path, first)
    rank.output.path.write_bytes(b"before\n")
    printing = asyncio.create_task(parts._print(rank))
    await until(lambda: bool(first.kept))
    os.truncate(rank.output.path, 0)
    rank.output.path.write_bytes(after)
    rank.over = True
    await asyncio.wait_for(printing, 20)
    assert bytes(first.kept) == b"before\n" + after


async def test_what_a_line_has_lost_and_a_part_has_emptied_since_is_said_to_be_lost(tmp_path: Path) -> None:
    first = FirstNode(loses=2)
    parts, rank = part_that_printed(tmp_path, first)
    printing = asyncio.create_task(parts._print(rank))
    await until(lambda: rank.printed == len(OUTPUT))
    arrived = len(first.kept)
    assert arrived < len(OUTPUT)
    os.truncate(rank.output.path, 0)
    rank.output.path.write_bytes(b"after\n")
    await until(lambda: rank.printed == len(OUTPUT) + 6)
    parts.welcomed([PrintedSoFar(job_id=OFFER.job_id, epoch=OFFER.epoch, offset=arrived)])
    rank.over = True
    await asyncio.wait_for(printing, 20)
    kept = bytes(first.kept)
    assert (len(kept), kept[:arrived]) == (len(OUTPUT) + 6, OUTPUT[:arrived])
    assert b"bytes lost: gone from this output before they were sent]" in kept[arrived : arrived + 100]
    assert b"line" not in kept[arrived:]
    assert kept.endswith(b"after\n")


async def test_a_node_that_cannot_open_another_file_for_a_moment_sends_its_output_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = FirstNode(loses=0)
    parts, rank = part_that_printed(tmp_path, first)
    left, opened = [3], Path.open

    def scarce(path: Path, *args: Any, **choices: Any) -> Any:
        if path == rank.output.path and left[0]:
            left[0] -= 1
            raise OSError(errno.EMFILE, "too many open files")
        return opened(path, *args, **choices)

    monkeypatch.setattr(Path, "open", scarce)
    monkeypatch.setattr(ranks, "LOOK_EVERY_S", 0.01)
    rank.over = True
    await asyncio.wait_for(parts._print(rank), 20)
    assert bytes(first.kept) == OUTPUT


async def test_an_output_that_a_job_made_endless_by_a_hole_does_not_keep_its_part_from_ending(
    tmp_path: Path,
) -> None:
    """A job may make the file that it prints to as long as it likes: `os.ftruncate(1, 2**43)`."""
    member = NodeMember(node=1, name="n", home="h", gpus=(), own_names={}, trainers=())
    log_file = tmp_path / "nodes" / "rank-1.log"
    kept = FollowerPart(member, OFFER, NodeSpan(nodes=2, rank=1, address="", port=1), log_file)
    first = FirstNode(loses=0)
    parts, rank = part_that_printed(tmp_path, first)

    def tell(message: FromFollower) -> bool:
        if isinstance(message, Printed):
            kept.note_printed(message)
            kept.note_printed(message)  # as after a line that was dialled anew
            return True
        return first.tell(message)

    parts._tell = tell
    rank.output.path.write_bytes(b"begun\n")
    with rank.output.path.open("ab") as file:
        file.truncate(2**43)
        file.write(b"the end\n")
    rank.over = True
    ended = RankEnded(job_id=OFFER.job_id, epoch=OFFER.epoch, reason=EndReason.EXITED, exit_code=0)
    await asyncio.wait_for(parts._tell_end(rank, ended), 30)
    assert first.ends == [ended]
    assert kept.printed == rank.output.path.stat().st_size
    text = log_file.read_bytes()
    assert len(text) < 2 * part_output.END_BYTES
    assert b"bytes left out because they came faster than they were sent" in text
    assert text.endswith(b"the end\n")


def test_of_a_piece_that_comes_again_after_a_gap_only_what_is_new_is_kept(tmp_path: Path) -> None:
    member = NodeMember(node=1, name="n", home="h", gpus=(), own_names={}, trainers=())
    part = FollowerPart(member, OFFER, NodeSpan(nodes=2, rank=1, address="", port=1), tmp_path / "n" / "log")

    def printed(offset: int, gap: int, data: bytes) -> None:
        part.note_printed(Printed(job_id=OFFER.job_id, epoch=OFFER.epoch, offset=offset, data=data, gap=gap))

    printed(0, 0, b"one\n")
    printed(4, 100, b"two\n")
    printed(0, 104, b"two\nthree\n")
    printed(300, 0, b"too early\n")
    assert part.printed == 114
    assert (tmp_path / "n" / "log").read_text() == (
        "one\n\n… 100 bytes left out because they came faster than they were sent …\ntwo\nthree\n"
    )


class FullDisk(io.RawIOBase):
    """Takes a few bytes and then no more."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self._room = file, room

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if not self._room:
            raise OSError(errno.ENOSPC, "no space left on device")
        size = min(len(data), self._room)
        self._room -= size
        self._file.write(bytes(data[:size]))
        self._file.flush()
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


async def test_what_a_full_disk_on_the_first_node_swallows_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = NodeMember(node=1, name="n", home="h", gpus=(), own_names={}, trainers=())
    log_file = tmp_path / "nodes" / "rank-1.log"
    part = FollowerPart(member, OFFER, NodeSpan(nodes=2, rank=1, address="", port=1), log_file)
    room: list[int | None] = [None, 4, 0, None]
    opened = Path.open

    def full(path: Path, mode: str = "r", *args: Any, **choices: Any) -> Any:
        file = opened(path, mode, *args, **choices)
        space = room.pop(0) if path == log_file and "a" in mode and room else None
        return file if space is None else FullDisk(file, space)

    monkeypatch.setattr(Path, "open", full)
    offset = 0
    for text in (b"one\n", b"two two\n", b"three\n", b"four\n"):
        part.note_printed(Printed(job_id=OFFER.job_id, epoch=OFFER.epoch, offset=offset, data=text))
        offset += len(text)
    assert part.printed == offset, "nobody sends again what there is no room for"
    kept = log_file.read_text()
    assert kept.startswith("one\ntwo ")
    assert kept.endswith("four\n")
    assert "10 bytes left out because the first node's disk took no more" in kept
