"""Writes a grey PNG with zlib alone."""

import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simpletuner_fleet.trainers.demo.learning.data import CLASSES, SIDE, Floats
from simpletuner_fleet.trainers.demo.output.files import write_whole

ENLARGE = 4
GAP = 4


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    height, width = pixels.shape
    rows = np.zeros((height, width + 1), dtype=np.uint8)  # the first byte of a row says: not filtered
    rows[:, 1:] = pixels
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", header),
            _chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)),
            _chunk(b"IEND", b""),
        )
    )


def grid(images: Floats) -> NDArray[np.uint8]:
    """Lays out one row for each kind, with every pixel enlarged."""
    columns = len(images) // len(CLASSES)
    cell = SIDE * ENLARGE + GAP
    sheet = np.full((len(CLASSES) * cell + GAP, columns * cell + GAP), 64, dtype=np.uint8)
    for index, image in enumerate(images[: columns * len(CLASSES)]):
        grey = ((image.reshape(SIDE, SIDE) + 1.0) * 127.5).round().astype(np.uint8)
        top, left = (GAP + cell * place for place in divmod(index, columns))
        enlarged = grey.repeat(ENLARGE, axis=0).repeat(ENLARGE, axis=1)
        sheet[top : top + SIDE * ENLARGE, left : left + SIDE * ENLARGE] = enlarged
    return sheet


def write_grid(path: Path, images: Floats) -> None:
    write_whole(path, encode_png(grid(images)))


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
