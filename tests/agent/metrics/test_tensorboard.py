"""TensorBoard's event files, written here by the public description of the format."""

import math
import struct
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.agent.metrics.follower import Progress, progress_of
from simpletuner_fleet.agent.metrics.readings import Readings
from simpletuner_fleet.agent.metrics.tensorboard import EventFile, EventFolder, masked_crc32c, read_event

NAME = "events.out.tfevents.1700000000.host.1.0"
AT = 1_700_000_000.5


def varint(value: int) -> bytes:
    value %= 2**64
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def sized(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def simple(tag: str, value: float) -> bytes:
    return sized(1, sized(1, tag.encode()) + varint(2 << 3 | 5) + struct.pack("<f", value))


def tensor(tag: str, fields: bytes) -> bytes:
    return sized(1, sized(1, tag.encode()) + sized(9, sized(1, sized(1, b"scalars"))) + sized(8, fields))


def event(step: int, *values: bytes, at: float = AT) -> bytes:
    head = varint(1 << 3 | 1) + struct.pack("<d", at) + varint(2 << 3) + varint(step)
    return head + sized(5, b"".join(values))


def record(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    checksums = (struct.pack("<I", masked_crc32c(part)) for part in (length, content))
    return length + next(checksums) + content + next(checksums)


def scalars(step: int, **values: float) -> bytes:
    return record(event(step, *(simple(tag, value) for tag, value in values.items())))


def read(file: EventFile, most: int = 500) -> list[tuple[int, dict[str, float]]]:
    piece = file.peek(most)
    assert piece is not None
    file.take(piece)
    return [(point.step, point.values) for point in piece.points]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / NAME


def file_of(path: Path, since: int = 0) -> EventFile:
    return EventFile(path, path.name, since)


def test_the_checksum_is_the_known_one() -> None:
    """CRC-32C of '123456789' is 0xe3069283, by its definition."""
    mask = 0xA282EAD8
    crc = 0xE3069283
    assert masked_crc32c(b"123456789") == ((crc >> 15 | crc << 17) + mask) & 0xFFFFFFFF


def test_a_simple_value_and_its_time_are_read() -> None:
    point = read_event(event(7, simple("train/loss", 0.5)))
    assert point is not None
    assert (point.step, point.at, point.values) == (7, AT, {"train_loss": 0.5})


@pytest.mark.parametrize(
    "fields",
    [
        varint(1 << 3) + varint(1) + sized(4, struct.pack("<f", 2.5)),
        varint(1 << 3) + varint(1) + sized(2, b"") + sized(5, struct.pack("<f", 2.5)),
        varint(1 << 3) + varint(1) + varint(5 << 3 | 5) + struct.pack("<f", 2.5),
        varint(1 << 3) + varint(2) + sized(4, struct.pack("<d", 2.5)),
        varint(1 << 3) + varint(2) + sized(6, struct.pack("<d", 2.5)),
    ],
)
def test_a_scalar_tensor_is_read_in_every_form_it_may_have(fields: bytes) -> None:
    point = read_event(event(1, tensor("loss", fields)))
    assert point is not None
    assert point.values == {"loss": 2.5}


def test_whole_numbers_in_tensors_may_be_negative() -> None:
    packed = varint(1 << 3) + varint(9) + sized(10, varint(-3))
    plain = varint(1 << 3) + varint(3) + varint(7 << 3) + varint(-4)
    point = read_event(event(1, tensor("a", packed), tensor("b", plain)))
    assert point is not None
    assert point.values == {"a": -3.0, "b": -4.0}


@pytest.mark.parametrize(
    "value",
    [
        tensor("rows", varint(1 << 3) + varint(1) + sized(2, sized(2, b"\x08\x01")) + sized(4, b"\0" * 4)),
        tensor("text", varint(1 << 3) + varint(7) + sized(8, b"words")),
        sized(1, sized(1, b"picture") + sized(4, b"\x08\x01")),
        b"",
    ],
)
def test_what_is_no_scalar_is_passed_over(value: bytes) -> None:
    assert read_event(event(1, value)) is None


@pytest.mark.parametrize("content", [b"\xff" * 30, b"\x0a\xff", b"\x08", event(-5, simple("loss", 1.0))])
def test_bytes_that_are_no_event_are_no_point(content: bytes) -> None:
    assert read_event(content) is None


def test_a_loss_that_is_not_a_number_is_told(path: Path) -> None:
    path.write_bytes(scalars(3, loss=math.nan) + scalars(4, loss=math.inf))
    (third, fourth) = read(file_of(path))
    assert math.isnan(third[1]["loss"])
    assert fourth == (4, {"loss": math.inf})


def test_numbers_of_one_step_become_one_point(path: Path) -> None:
    path.write_bytes(scalars(1, loss=1.0) + scalars(1, lr=0.5) + scalars(2, loss=0.5) + scalars(2, loss=0.25))
    assert read(file_of(path)) == [(1, {"loss": 1.0, "lr": 0.5}), (2, {"loss": 0.5}), (2, {"loss": 0.25})]


def test_a_record_is_read_when_its_last_byte_is_there(path: Path) -> None:
    whole = scalars(1, loss=1.0) + scalars(2, loss=0.5)
    file = file_of(path)
    points = []
    for end in range(len(whole) + 1):
        path.write_bytes(whole[:end])
        points += read(file)
    assert points == [(1, {"loss": 1.0}), (2, {"loss": 0.5})]


def test_at_most_so_many_points_are_read_at_once(path: Path) -> None:
    path.write_bytes(b"".join(scalars(step, loss=1.0) for step in range(10)))
    file = file_of(path)
    assert [len(read(file, most=4)) for _ in range(4)] == [4, 4, 2, 0]


def test_a_long_record_is_passed_over_unread(path: Path) -> None:
    with path.open("wb") as out:
        length = struct.pack("<Q", 3 * 2**20)
        out.write(length + struct.pack("<I", masked_crc32c(length)))
        out.seek(3 * 2**20 + 4, 1)
        out.write(scalars(2, loss=0.5))
    assert read(file_of(path)) == [(2, {"loss": 0.5})]


def test_a_damaged_record_costs_itself_alone(path: Path) -> None:
    damaged = bytearray(scalars(1, loss=1.0))
    damaged[20] ^= 0xFF
    path.write_bytes(bytes(damaged) + scalars(2, loss=0.5))
    assert read(file_of(path)) == [(2, {"loss": 0.5})]


def test_a_damaged_length_ends_the_reading_and_a_mended_one_goes_on(path: Path) -> None:
    good = scalars(1, loss=1.0)
    path.write_bytes(good + b"\0" * 40)
    file = file_of(path)
    assert read(file) == [(1, {"loss": 1.0})]
    assert read(file) == []
    path.write_bytes(good + scalars(2, loss=0.5))
    assert read(file) == [(2, {"loss": 0.5})]


def test_a_file_written_anew_is_read_from_its_start(path: Path) -> None:
    path.write_bytes(scalars(1, loss=1.0) + scalars(2, loss=0.5))
    file = file_of(path)
    read(file)
    path.write_bytes(scalars(2, loss=0.4))
    (again,) = read(file)
    assert again[0] == 2
    assert again[1]["loss"] == pytest.approx(0.4)


def test_a_later_process_goes_on_where_the_one_before_was(path: Path) -> None:
    path.write_bytes(scalars(1, loss=1.0))
    first = file_of(path)
    read(first)
    second = file_of(path)
    second.restore(first.offset, first.tail)
    path.write_bytes(path.read_bytes() + scalars(2, loss=0.5))
    assert read(second) == [(2, {"loss": 0.5})]


def test_steps_before_the_one_it_went_on_from_are_not_this_attempts(path: Path) -> None:
    path.write_bytes(scalars(0, hparam=1.0) + scalars(50, loss=1.0))
    assert read(file_of(path, since=50)) == [(50, {"loss": 1.0})]


def test_files_are_found_beneath_the_folder_as_they_appear_but_not_in_checkpoints(tmp_path: Path) -> None:
    for place in ("logs/run", "checkpoint-10/logs", "."):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
    (tmp_path / "checkpoint-10/logs" / NAME).touch()
    (tmp_path / "logs/run" / NAME).touch()
    folder = EventFolder(tmp_path)
    assert [file.name for file in folder.look(at_once=True)] == [f"logs/run/{NAME}"]
    (tmp_path / NAME).touch()
    assert [file.name for file in folder.look(at_once=True)] == [NAME]
    assert folder.look(at_once=True) == []


def test_a_folder_that_takes_long_to_look_through_is_looked_through_seldom(tmp_path: Path) -> None:
    times = iter([0.0, 1.0, 1.0, 10.0, 30.0, 30.0, 30.0])
    folder = EventFolder(tmp_path, clock=lambda: next(times))
    assert folder.look() == []
    (tmp_path / NAME).touch()
    assert folder.look() == []
    assert len(folder.look()) == 1


def progress(readings: Readings) -> Progress | None:
    readings.read(at_once=True)
    return progress_of(readings.latest(), None)


def test_progress_is_told_from_event_files_alone(tmp_path: Path) -> None:
    readings = Readings((), tmp_path)
    assert progress(readings) is None
    tags: dict[str, Any] = {"train/loss": 0.25, "learning_rate": 0.125}
    (tmp_path / NAME).write_bytes(b"".join(scalars(9, **{tag: value}) for tag, value in tags.items()))
    assert progress(readings) == {"step": 9, "loss": 0.25, "lr": 0.125}
    with (tmp_path / NAME).open("ab") as out:
        out.write(scalars(10, **{"train/loss": math.nan}))
    assert progress(readings) == {"step": 10, "loss": "NaN", "lr": 0.125}
