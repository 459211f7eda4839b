from simpletuner_fleet.engine.memory.stored_counts import (
    GOOD_FOR_S,
    WATCHED_GOOD_FOR_S,
    StoredCounts,
)


def test_what_is_stored_is_counted_once_in_a_while_however_many_jobs_are_submitted() -> None:
    walks: list[str] = []

    def count(account: str) -> int:
        walks.append(account)
        return len(walks) * 100

    counts = StoredCounts()
    assert [counts.of("all", 1000.0 + n / 100, count) for n in range(1000)] == [100] * 1000
    assert counts.of("person:ann", 1000.0, count) == 200
    assert counts.of("all", 1000.0 + GOOD_FOR_S, count) == 300
    assert counts.of("all", 900.0, count) == 400, "a clock set back makes no count last longer"
    assert walks == ["all", "person:ann", "all", "all"]


def test_old_counts_of_endlessly_many_accounts_are_forgotten() -> None:
    counts = StoredCounts()
    for number in range(10_000):
        assert counts.of(f"person:{number}", 1000.0 + number, len) == len(f"person:{number}")
    assert len(counts._counts) <= 1_000
    assert counts.of("person:9999", 10_999.0, lambda _: 0) == len("person:9999"), "it is still good"


def test_what_was_counted_beside_the_steps_is_taken_rather_than_counted() -> None:
    counts = StoredCounts()
    counts.note_watched({"all": 7}, 1000.0)
    assert counts.of("all", 1000.0 + WATCHED_GOOD_FOR_S - 1, lambda account: 8) == 7
    assert counts.of("u_ann", 1000.0, lambda account: 9) == 9, "who had stored nothing then"
    assert counts.of("all", 1000.0 + WATCHED_GOOD_FOR_S, lambda account: 8) == 8
    assert counts.of("all", 999.0, lambda account: 5) == 5, (
        "nor what a clock that was set back has not counted yet"
    )
