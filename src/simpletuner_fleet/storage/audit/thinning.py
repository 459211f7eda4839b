"""Thins the file of signed heads: it would grow for ever, and each start reads it from its end.

A head proves all entries before it, too. So of those that are older than some days, one an hour proves as much as all;
but of those that the log contradicts one an hour stays as well: it proves that the log was changed.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

import msgspec
from msgspec import Struct

from simpletuner_fleet.ports import View
from simpletuner_fleet.protocol.messages import AuditHead

HOUR_S = 3600.0
LOOKED_UP_AT_ONCE = 500
IsOurs = Callable[[AuditHead], bool]


class SpareHead(Struct, frozen=True):
    """Names a line of the file whose head says no more than another of its hour."""

    line: int
    hour: int
    seq: int
    hash: str


def head_in(line: bytes) -> AuditHead | None:
    with suppress(msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode(line, type=AuditHead)
    return None


def spare_heads(file: Path, before: float, is_ours: IsOurs) -> list[SpareHead]:
    """Returns our heads from before that time, but for the one with the highest number of each hour.

    What another has signed is none of them: it is proof that somebody wrote to the file.
    """
    highest: dict[int, SpareHead] = {}
    spare: list[SpareHead] = []
    for line, head in _old_heads(file, before):
        if not is_ours(head):
            continue
        this = SpareHead(line, int(head.at // HOUR_S), head.seq, head.hash)
        known = highest.setdefault(this.hour, this)
        if known is not this:
            lower, highest[this.hour] = sorted((known, this), key=_by_number)
            spare.append(lower)
    return spare


def contradicted(view: View, heads: Sequence[SpareHead]) -> list[SpareHead]:
    """Returns those instead of which the log has another entry with the same number."""
    stored = dict(entry for head in heads for entry in view.audit_hashes(head.seq - 1, 1))
    return [head for head in heads if stored.get(head.seq, head.hash) != head.hash]


def without_proofs(spare: Sequence[SpareHead], against_the_log: Sequence[SpareHead]) -> list[SpareHead]:
    """Returns the spare heads but for the highest of each hour among those that the log contradicts."""
    proofs = {head.hour: head.line for head in sorted(against_the_log, key=_by_number)}
    return [head for head in spare if proofs.get(head.hour) != head.line]


def leave_out(file: Path, spare: Sequence[SpareHead], writing: Lock) -> int:
    """Leaves these heads out of the file, and returns how many there were; nobody appends while `writing` is held.

    A line that says something else by now stays. Raises OSError, and leaves the file as it is then.
    """
    if not spare:
        return 0
    place = Path(os.path.realpath(file))
    left_out = 0
    known = {head.line: (head.seq, head.hash) for head in spare}
    descriptor, draft = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}-")
    try:
        with writing, open(descriptor, "wb") as thinned, place.open("rb") as lines:
            for number, line in enumerate(lines):
                if number in known and (head := head_in(line)) and (head.seq, head.hash) == known[number]:
                    left_out += 1
                else:
                    thinned.write(line)
            thinned.flush()
            shutil.copymode(place, draft)  # somebody else may copy it from here
            os.fsync(descriptor)
            os.replace(draft, place)
    except BaseException:
        os.unlink(draft)
        raise
    return left_out


def _by_number(head: SpareHead) -> tuple[int, int]:
    return head.seq, head.line


def _old_heads(file: Path, before: float) -> Iterator[tuple[int, AuditHead]]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines):
            head = head_in(line)
            if head is not None and head.at < before:
                yield number, head
