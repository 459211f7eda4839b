"""How a word from a flag, a variable or a file becomes a value."""

from collections.abc import Callable

import pytest

from simpletuner_fleet.orchestrator.workers.inventory import MAX_JOBS_PER_WORKER
from simpletuner_fleet.settings import values


@pytest.mark.parametrize("word", ["1", "true", "Yes", "ON", " on "])
def test_words_that_mean_yes(word: str) -> None:
    assert values.boolean(word) is True


@pytest.mark.parametrize("word", ["0", "false", "No", "OFF", "", "  "])
def test_words_that_mean_no(word: str) -> None:
    assert values.boolean(word) is False


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("15m", 900), ("2h", 7200), ("1h30m", 5400), ("0.2", 0.2), ("1d", 86400)],
)
def test_times_are_read_with_or_without_units(text: str, seconds: float) -> None:
    assert values.seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "-1", "0", "2x", "1h-30m", "nan", "inf"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        values.seconds(text)


@pytest.mark.parametrize(
    "text",
    ["", "host:8001", "ftp://h", "http://", "http://u:p@h", "http://h?x=1", "http://h:x", "http://h:99999"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        values.url(text)


@pytest.mark.parametrize(
    "host", ["a..b", ".a", f"{'a' * 64}.org", "ä..b", "[v1.x]", "[1.2.3.4]", "a\x01b", "a\u2028b"]
)
def test_an_address_whose_host_nobody_could_look_up_is_refused(host: str) -> None:
    for parse, scheme in ((values.url, "https"), (values.urls, "http"), (values.mail_server, "smtps")):
        with pytest.raises(ValueError, match="expected"):
            parse(f"{scheme}://{host}:8001")


@pytest.mark.parametrize(
    "url", ["https://a.b.:1", "http://[::1]:8001", "http://[fe80::1%25eth0]", "https://bücher.example/x"]
)
def test_an_address_with_a_host_that_can_be_looked_up_is_taken(url: str) -> None:
    assert values.url(url) == url


@pytest.mark.parametrize(
    ("text", "priority"), [("7", 7), ("-3", -3), ("0", 0), ("high", "high"), ("urgent", "urgent")]
)
def test_a_priority_is_a_number_or_a_word_that_the_server_knows(text: str, priority: int | str) -> None:
    assert values.priority(text) == priority


def test_a_label_may_be_a_comparison_of_versions() -> None:
    seen = values.label_patterns(["trainer>=4.3", "pool=a*", "cuda<13", "note=a>=b"])
    assert seen == {"trainer": ">=4.3", "pool": "a*", "cuda": "<13", "note": "a>=b"}
    with pytest.raises(ValueError, match="expected KEY=VALUE"):
        values.label_patterns(["trainer>new"])


@pytest.mark.parametrize(
    ("parse", "text"),
    [(values.jobs_at_once, "1025"), (values.jobs_at_once, "9" * 20), (values.count, "9" * 20)],
)
def test_a_number_that_nothing_could_hold_is_refused(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(ValueError, match="expected at most"):
        parse(text)


def test_as_many_jobs_may_be_set_as_the_orchestrator_takes() -> None:
    assert values.jobs_at_once(str(MAX_JOBS_PER_WORKER)) == values.MOST_JOBS


@pytest.mark.parametrize("text", ["100001d", "99999999w", "9" * 400])
def test_a_time_beyond_any_calendar_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected at most 100000d"):
        values.seconds(text)
    assert values.seconds("100000d") == 8_640_000_000


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999", "", "many"])
def test_what_json_cannot_carry_is_no_number(text: str) -> None:
    with pytest.raises(ValueError, match="expected a number"):
        values.number(text)


@pytest.mark.parametrize("read", [values.path, lambda text: values.job_paths([text])])
def test_the_home_of_nobody_is_told(read: Callable[[str], object]) -> None:
    with pytest.raises(ValueError, match="there is no user 'nobody-at-all' on this machine"):
        read("~nobody-at-all/data")
