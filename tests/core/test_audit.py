from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from simpletuner_fleet.core.audit import GENESIS, AuditEntry, ChainCheck, Problem, Witness, entry_hash


def an_entry(seq: int) -> AuditEntry:
    return AuditEntry(
        seq=seq,
        at=1_700_000_000.25 + seq,
        event_type="job.submitted",
        actor_id="u_1",
        actor_name="Ada",
        ip="10.0.0.1",
        target_type="job",
        target_id=f"j_{seq}",
        details={"config": "c", "gpus": [1, 2], "nested": {"a": None}},
    )


def chain(entries: Sequence[AuditEntry]) -> list[AuditEntry]:
    chained, last = [], GENESIS
    for entry in entries:
        last = entry_hash(entry, last)
        chained.append(replace(entry, hash=last))
    return chained


HONEST = chain([an_entry(seq) for seq in range(1, 8)])
KNOWN = "f77d9a5badd77de7e9e63d4092e3322b58f00e24554ece888715234dcf73261b"
HEAD = Witness("worker w_1", 7, HONEST[-1].hash)


def problems(entries: Sequence[AuditEntry], *witnesses: Witness) -> list[Problem]:
    check = ChainCheck(witnesses)
    check.feed(entries)
    return check.finish()


def test_the_hash_of_a_known_entry_never_changes() -> None:
    assert entry_hash(an_entry(1), GENESIS) == KNOWN


def test_an_honest_chain_is_clean() -> None:
    assert problems(HONEST) == []
    assert problems(HONEST, HEAD, Witness("worker w_2", 3, HONEST[2].hash)) == []
    assert problems([]) == []


def test_a_chain_may_be_checked_in_pages() -> None:
    check = ChainCheck([HEAD])
    for entry in HONEST:
        check.feed([entry])
    assert check.finish() == []
    assert check.checked == len(HONEST)


COLUMNS = {
    "seq": 99,
    "at": 5.0,
    "event_type": "job.cancelled",
    "actor_id": "u_2",
    "actor_name": "Eve",
    "ip": "10.0.0.2",
    "target_type": "worker",
    "target_id": "j_other",
    "details": {"config": "c", "gpus": [1, 2], "nested": {"a": 0}},
    "hash": "f" * 64,
}


def test_every_column_is_watched() -> None:
    assert set(COLUMNS) == set(AuditEntry.__struct_fields__)


@pytest.mark.parametrize("column", sorted(COLUMNS))
@pytest.mark.parametrize("at", range(len(HONEST)))
def test_an_edit_of_any_column_of_any_entry_is_found(column: str, at: int) -> None:
    edited = list(HONEST)
    edited[at] = replace(edited[at], **{column: COLUMNS[column]})
    reported = problems(edited)
    assert reported
    assert reported[0].seq in {HONEST[at].seq, COLUMNS["seq"]}


@pytest.mark.parametrize("at", range(len(HONEST) - 1))
def test_a_deletion_before_the_end_is_found(at: int) -> None:
    reported = problems(HONEST[:at] + HONEST[at + 1 :])
    missing = {"first": at + 1, "last": at + 1}
    assert reported == [Problem(at + 2, f"entries {at + 1} to {at + 1} are missing", "missing", missing)]


@pytest.mark.parametrize("left", range(len(HONEST)))
def test_a_cut_at_the_end_is_found_with_a_witness_and_only_then(left: int) -> None:
    assert problems(HONEST[:left]) == []
    reported = problems(HONEST[:left], HEAD)
    assert [problem.seq for problem in reported] == [7]
    assert reported[0].what == f"the log ends at {left}, but worker w_1 has seen entry 7: it was cut off"


def test_a_deletion_that_renumbers_the_rest_is_found() -> None:
    renumbered = [replace(entry, seq=seq) for seq, entry in enumerate(HONEST[:2] + HONEST[3:], 1)]
    assert problems(renumbered)


def test_a_deletion_that_also_hashes_the_rest_anew_is_found_with_a_witness() -> None:
    forged = chain([replace(entry, seq=seq) for seq, entry in enumerate(HONEST[:2] + HONEST[3:], 1)])
    assert problems(forged) == []
    assert problems(forged, HEAD)
    assert problems(forged, Witness("worker w_2", 5, HONEST[4].hash)) == [
        Problem(5, "worker w_2 remembers another entry here", "contradicted", {"who": "worker w_2"})
    ]


@pytest.mark.parametrize("at", range(len(HONEST) - 1))
def test_entries_that_changed_places_are_found(at: int) -> None:
    swapped = [*HONEST[:at], HONEST[at + 1], HONEST[at], *HONEST[at + 2 :]]
    assert problems(swapped)
    renumbered = [replace(entry, seq=seq) for seq, entry in enumerate(swapped, 1)]
    assert problems(renumbered)


@pytest.mark.parametrize("at", range(1, len(HONEST) + 1))
def test_an_insertion_is_found(at: int) -> None:
    doubled = [*HONEST[:at], HONEST[at - 1], *HONEST[at:]]
    misplaced = Problem(at, f"the entry stands after entry {at}", "misplaced", {"after": at})
    assert problems(doubled)[0] == misplaced
    forged = an_entry(at + 1)
    forged = replace(forged, hash=entry_hash(forged, HONEST[at - 1].hash))
    later = [replace(entry, seq=entry.seq + 1) for entry in HONEST[at:]]
    if later:
        assert problems([*HONEST[:at], replace(forged, target_id="x"), *later])


def test_the_order_of_keys_in_the_details_does_not_matter_but_all_else_does() -> None:
    def hashed(**details: object) -> str:
        return entry_hash(replace(an_entry(1), details=details), GENESIS)

    assert hashed(a=1, b=2) == hashed(b=2, a=1)
    assert len({hashed(a=1), hashed(a="1"), hashed(a=True), hashed(a=None), hashed(a=[1]), hashed()}) == 6


def test_text_cannot_move_from_one_column_to_the_next() -> None:
    one = replace(an_entry(1), actor_id="ab", actor_name="c")
    other = replace(an_entry(1), actor_id="a", actor_name="bc")
    assert entry_hash(one, GENESIS) != entry_hash(other, GENESIS)


def test_the_hash_before_is_part_of_the_hash() -> None:
    assert entry_hash(an_entry(2), GENESIS) != entry_hash(an_entry(2), HONEST[0].hash)


texts = st.text(max_size=8)
tampering = st.sampled_from(["edit", "delete", "swap", "double"])


@settings(max_examples=100)
@given(st.lists(st.dictionaries(texts, texts, max_size=3), min_size=2, max_size=8), tampering, st.data())
def test_a_witnessed_chain_betrays_any_tampering(
    details: list[dict[str, str]], how: str, data: st.DataObject
) -> None:
    honest = chain([replace(an_entry(seq), details=detail) for seq, detail in enumerate(details, 1)])
    head = Witness("w", honest[-1].seq, honest[-1].hash)
    assert problems(honest, head) == []
    at = data.draw(st.integers(0, len(honest) - 1))
    ways: dict[str, Callable[[], list[AuditEntry]]] = {
        "edit": lambda: [*honest[:at], replace(honest[at], details={"x": 1}), *honest[at + 1 :]],
        "delete": lambda: honest[:at] + honest[at + 1 :],
        "swap": lambda: [*honest[:at], *reversed(honest[at : at + 2]), *honest[at + 2 :]],
        "double": lambda: [*honest[: at + 1], *honest[at:]],
    }
    tampered = ways[how]()
    assert tampered == honest or problems(tampered, head)
