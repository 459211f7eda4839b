"""How many streams one caller, and all together, may hold open."""

from collections import Counter

from simpletuner_fleet.core.errors import TooManyRequests

MAX_STREAMS_PER_CALLER = 64
MAX_STREAMS_IN_ALL = 2_000
TRY_AGAIN_S = 10.0


def enter(open_streams: Counter[str], caller: str) -> None:
    """Counts one more stream of this caller, or refuses it."""
    if open_streams[caller] >= MAX_STREAMS_PER_CALLER or open_streams.total() >= MAX_STREAMS_IN_ALL:
        raise TooManyRequests(TRY_AGAIN_S)
    open_streams[caller] += 1


def leave(open_streams: Counter[str], caller: str) -> None:
    open_streams[caller] -= 1
    if open_streams[caller] <= 0:
        del open_streams[caller]
