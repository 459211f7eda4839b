"""The tamper-evident log: each entry's hash covers every column and the hash before it."""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct

DOMAIN = b"simpletuner-fleet audit entry v1\n"
GENESIS = "0" * 64
canonical: Callable[[Any], str] = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
).encode
"""The one text of a JSON value."""


class AuditEntry(Struct, frozen=True, kw_only=True):
    seq: int
    at: float
    event_type: str
    actor_id: str
    actor_name: str
    ip: str
    target_type: str
    target_id: str
    details: dict[str, Any]
    hash: str = ""


def entry_hash(entry: AuditEntry, previous_hash: str, details: str | None = None) -> str:
    """Hashes the canonical text of the list of all columns; `details` is their text where it is known already."""
    columns = [
        # A number in the database may have become anything; ours needs no encoder.
        str(entry.seq) if type(entry.seq) is int else canonical(entry.seq),
        *map(canonical, (repr(entry.at), entry.event_type, entry.actor_id, entry.actor_name)),
        *map(canonical, (entry.ip, entry.target_type, entry.target_id)),
        canonical(entry.details) if details is None else details,
        canonical(previous_hash),
    ]
    return hashlib.sha256(DOMAIN + f"[{','.join(columns)}]".encode()).hexdigest()


class Problem(Struct, frozen=True):
    """`code` and `params` say what `what` says in English."""

    seq: int
    what: str
    code: str = ""
    params: dict[str, Any] = {}


class Witness(Struct, frozen=True):
    """The newest head that somebody outside the database remembers."""

    who: str
    seq: int
    hash: str


class ChainCheck:
    """Feed it every entry in order of sequence, then the witnesses."""

    def __init__(self, witnesses: Sequence[Witness]) -> None:
        self.problems: list[Problem] = []
        self.checked = 0
        self._previous_hash = GENESIS
        self._last_seq = 0
        self._awaited: dict[int, list[Witness]] = {}
        for witness in witnesses:
            self._awaited.setdefault(witness.seq, []).append(witness)

    def feed(self, entries: Iterable[AuditEntry]) -> None:
        for entry in entries:
            self.checked += 1
            if entry.seq <= self._last_seq:
                self._note(
                    entry.seq, "misplaced", "the entry stands after entry {after}", after=self._last_seq
                )
            elif entry.seq > self._last_seq + 1:
                self._note(
                    entry.seq,
                    "missing",
                    "entries {first} to {last} are missing",
                    first=self._last_seq + 1,
                    last=entry.seq - 1,
                )
            elif entry_hash(entry, self._previous_hash) != entry.hash:
                self._note(entry.seq, "changed", "the entry does not match its hash: it was changed")
            for witness in self._awaited.pop(entry.seq, ()):
                if witness.hash != entry.hash:
                    self._note(
                        entry.seq, "contradicted", "{who} remembers another entry here", who=witness.who
                    )
            self._previous_hash, self._last_seq = entry.hash, entry.seq

    def finish(self) -> list[Problem]:
        for seq, witnesses in sorted(self._awaited.items()):
            who = ", ".join(witness.who for witness in witnesses)
            self._note(
                seq,
                "cut_off",
                "the log ends at {last}, but {who} has seen entry {seq}: it was cut off",
                last=self._last_seq,
                who=who,
                seq=seq,
            )
        return self.problems

    def _note(self, at: int, code: str, sentence: str, **params: Any) -> None:
        self.problems.append(Problem(at, sentence.format(**params), code, params))
