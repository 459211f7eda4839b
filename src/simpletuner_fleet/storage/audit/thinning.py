"""Thins the file of signed heads: it would grow for ever, and each start reads it from its end.

A head proves all entries before it, too. So of those that are older than some days, one an hour proves as much as all.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from simpletuner_fleet.protocol.messages import AuditHead

HOUR_S = 3600.0
IsOurs = Callable[[AuditHead], bool]


def head_in(line: bytes) -> AuditHead | None:
    with suppress(msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode(line, type=AuditHead)
    return None


def thin(file: Path, before: float, is_ours: IsOurs) -> int:
    """Leaves of our heads from before that time the one with the highest number of each hour.

    Returns how many were left out. What another has signed stays, as proof that somebody wrote to the file. Raises
    OSError, and leaves the file as it is then.
    """
    place = Path(os.path.realpath(file))
    superfluous = _superfluous(place, before, is_ours)
    if not superfluous:
        return 0
    descriptor, draft = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}-")
    try:
        with open(descriptor, "wb") as thinned, place.open("rb") as lines:
            thinned.writelines(line for number, line in enumerate(lines) if number not in superfluous)
            thinned.flush()
            os.fsync(descriptor)
        os.replace(draft, place)
    except BaseException:
        os.unlink(draft)
        raise
    return len(superfluous)


def _superfluous(place: Path, before: float, is_ours: IsOurs) -> set[int]:
    """Returns the numbers of the lines that say no more than another of their hour."""
    highest: dict[int, tuple[int, int]] = {}
    superfluous: set[int] = set()
    for number, head in _old_heads(place, before):
        if not is_ours(head):
            continue
        hour, this = int(head.at // HOUR_S), (head.seq, number)
        known = highest.get(hour)
        if known is not None:
            superfluous.add(min(known, this)[1])
        highest[hour] = this if known is None else max(known, this)
    return superfluous


def _old_heads(place: Path, before: float) -> Iterator[tuple[int, AuditHead]]:
    with place.open("rb") as lines:
        for number, line in enumerate(lines):
            head = head_in(line)
            if head is not None and head.at < before:
                yield number, head
