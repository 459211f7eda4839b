"""A stream of output over a growing file, read as the agent does."""

from pathlib import Path

from simpletuner_fleet.agent.ship.logs.log_stream import LogLimits, LogStream
from simpletuner_fleet.agent.ship.logs.output_log import Chunk
from simpletuner_fleet.agent.ship.masking import NO_MASK, Mask


def stream_of(
    path: Path, limits: LogLimits | None = None, mask: Mask = NO_MASK, boot: str | None = None
) -> LogStream:
    return LogStream([path], path.with_suffix(".index"), limits, mask, boot=boot)


def scanned(stream: LogStream, at: float = 1.0, *, ended: bool = False) -> LogStream:
    while stream.scan(at, at, ended=ended):
        pass
    return stream


def read_all(stream: LogStream, *, ended: bool, start: int = 0) -> list[Chunk]:
    chunks: list[Chunk] = []
    while chunk := stream.read_chunk(chunks[-1].next_offset if chunks else start, ended=ended):
        chunks.append(chunk)
    return chunks


def all_bytes(stream: LogStream, *, ended: bool, start: int = 0) -> bytes:
    return b"".join(chunk.data for chunk in read_all(stream, ended=ended, start=start))
