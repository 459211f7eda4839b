"""Makes the audit log tamper-evident: each entry's hash covers every column and the hash before it."""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct, ValidationError, convert

from simpletuner_fleet.core.events import EventType

DOMAIN = "simpletuner-fleet audit entry v1\n"
HEAD_DOMAIN = "simpletuner-fleet audit head v1\n"
GENESIS = "0" * 64
_encoder = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _make_canonical() -> Callable[[Any], str]:
    """Returns the function that writes a value as canonical text, with an encoder that is made only once.

    Python's own encoder is made anew for every value, which costs more than encoding the value.
    """
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return _encoder.encode
    pieces = make(None, _encoder.default, quoted, None, ":", ",", True, False, False)
    return lambda value: "".join(pieces(value, 0))


quoted: Callable[[str], str] = json.encoder.encode_basestring_ascii
"""The one text of a string: what `canonical` returns for it."""
canonical = _make_canonical()
"""The one text of a JSON value."""


class AuditEntry(Struct, frozen=True):
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


def emptied(entry: AuditEntry) -> AuditEntry:
    """Returns an expired entry with only its number, time and hash, so that the chain can still be checked."""
    return AuditEntry(entry.seq, entry.at, "", "", "", "", "", "", {}, entry.hash)


def is_emptied(entry: AuditEntry) -> bool:
    return not entry.event_type and entry == emptied(entry)


def entry_hash(entry: AuditEntry, previous_hash: str) -> str:
    """Hashes the canonical text of the list of all columns, even if somebody has edited them in the database."""
    columns = (
        *(entry.seq, repr(entry.at), entry.event_type, entry.actor_id, entry.actor_name, entry.ip),
        *(entry.target_type, entry.target_id, entry.details, previous_hash),
    )
    return _hashed(canonical(columns))


def new_entry_hash(head: str, details: str, previous_hash: str) -> str:
    """Returns the hash that `entry_hash` will return for this entry.

    `head` are the canonical texts of the columns before the details, `details` is that of the details.
    """
    return _hashed(f"[{head},{details},{quoted(previous_hash)}]")


def cut_of(entry: AuditEntry) -> "LogCut | None":
    try:
        return convert(entry.details, LogCut)
    except ValidationError:
        return None


def cuts_before(heads: Iterable["LogCut"], before: float, last_seq: int, already: int) -> "list[LogCut]":
    """Returns signed heads up to that moment and entry that would cut something new, the newest first."""
    fitting = [head for head in heads if head.at <= before and already < head.upto <= last_seq]
    return sorted(fitting, key=lambda head: head.upto, reverse=True)


def _hashed(text: str) -> str:
    return hashlib.sha256(f"{DOMAIN}{text}".encode()).hexdigest()


def head_text(seq: int, hash_: str, root: str, at: float) -> bytes:
    """Returns the one text of a head, which is signed."""
    return f"{HEAD_DOMAIN}{canonical([seq, hash_, root, repr(at)])}".encode()


class Problem(Struct, frozen=True):
    """Describes one fault in the audit log, in English (`what`) and for programs (`code` and `params`)."""

    seq: int
    what: str
    code: str = ""
    params: dict[str, Any] = {}


class Witness(Struct, frozen=True):
    """A witness is the newest head of the audit log that somebody outside the database remembers."""

    who: str
    seq: int
    hash: str


class LogCut(Struct, frozen=True):
    """Describes a deliberate cut of the audit log, in which its entries up to `upto` were emptied.

    An entry of the log tells of the cut. It was made at a head that was signed before.
    """

    upto: int
    hash: str
    root: str = ""
    at: float = 0.0
    signature: str = ""


class ChainCheck:
    """Checks the audit log: its chain of hashes, and whether it agrees with the witnesses.

    Feed it every entry in order of sequence, then finish. Entries may be empty from the first one on, as far
    as a later entry says that the log was cut there. Their hashes are taken as they stand: that they are
    those of the signed head there is for whoever can read them all to check (`cut`).
    """

    def __init__(self, witnesses: Sequence[Witness]) -> None:
        self.problems: list[Problem] = []
        self.checked = 0
        self.cut: LogCut | None = None
        """The last that the log tells of."""
        self.emptied_upto = 0
        self._hash_there = GENESIS
        self._previous_hash = GENESIS
        self._last_seq = 0
        self._awaited: dict[int, list[Witness]] = {}
        for witness in witnesses:
            self._awaited.setdefault(witness.seq, []).append(witness)

    def feed(self, entries: Iterable[AuditEntry]) -> None:
        for entry in entries:
            self.checked += not is_emptied(entry)
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
            elif is_emptied(entry) and self.emptied_upto == self._last_seq:
                self.emptied_upto, self._hash_there = entry.seq, entry.hash
            elif entry_hash(entry, self._previous_hash) != entry.hash:
                self._note(entry.seq, "changed", "the entry does not match its hash: it was changed")
            for witness in self._awaited.pop(entry.seq, ()):
                if witness.hash != entry.hash:
                    self._note(
                        entry.seq, "contradicted", "{who} remembers another entry here", who=witness.who
                    )
            self._previous_hash, self._last_seq = entry.hash, entry.seq
            if entry.event_type == EventType.AUDIT_CUT:
                self.cut = cut_of(entry) or self.cut

    def finish(self) -> list[Problem]:
        upto = self.cut.upto if self.cut else 0
        if self.emptied_upto > upto or (
            self.cut and self.emptied_upto == upto and self._hash_there != self.cut.hash
        ):
            self._note(
                self.emptied_upto,
                "emptied",
                "entries up to {last} are empty, and no entry says that the log was cut there",
                last=self.emptied_upto,
            )
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
