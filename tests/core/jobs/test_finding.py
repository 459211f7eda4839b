"""Orders and places of lists, and what may be written on a job."""

import base64
import json

import pytest

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.jobs.finding import (
    JobOrder,
    JobPlace,
    JobSort,
    check_note,
    check_tags,
    read_label,
    read_order,
    read_place,
    write_place,
)


@pytest.mark.parametrize("text", ["created", "-created", "name", "-name", "queue", "-finished"])
def test_an_order_is_written_as_it_is_read(text: str) -> None:
    assert read_order(text).text == text


def test_the_newest_and_the_most_come_first_names_from_their_beginning() -> None:
    assert read_order("finished").descending
    assert not read_order("name").descending
    assert not read_order("queue").descending
    assert read_order("-name").descending
    with pytest.raises(Invalid, match="sort must be one of"):
        read_order("owner; drop table jobs")


def test_a_cursor_is_for_the_list_that_it_comes_from() -> None:
    order = JobOrder(sort=JobSort.NAME, descending=False)
    place = JobPlace(order.text, "cats", 7, 100, True)
    assert read_place(write_place(place), order) == place
    with pytest.raises(Invalid, match="another order"):
        read_place(write_place(place), JobOrder())
    with pytest.raises(Invalid, match="another order"):
        read_place(write_place(JobPlace("created", "cats", 7, 0)), JobOrder())
    for nonsense in ("%%%", "bnVsbA", "W10", "é"):
        with pytest.raises(Invalid, match="not issued"):
            read_place(nonsense, order)


def test_tags_are_small_sorted_and_each_there_once() -> None:
    assert check_tags(["Paper", " cats ", "paper", "हिन्दी", "lr:1e-4"]) == (
        "cats",
        "lr:1e-4",
        "paper",
        "हिन्दी",
    )
    assert check_tags([]) == ()


@pytest.mark.parametrize("tag", ["", "two words", "a,b", 'q"', "x" * 51, "a\nb", "\\"])
def test_what_cannot_be_a_tag_is_told(tag: str) -> None:
    with pytest.raises(Invalid, match="cannot be a tag"):
        check_tags([tag])


def test_a_job_has_few_tags_and_a_short_note() -> None:
    with pytest.raises(Invalid, match="at most 20 tags"):
        check_tags([f"t{n}" for n in range(21)])
    with pytest.raises(Invalid, match="4000 characters"):
        check_note("x" * 4001)
    assert check_note("  two\r\nlines ") == "two\nlines"


def test_a_label_is_a_key_and_a_value() -> None:
    assert read_label("rack=r1=x") == ("rack", "r1=x")
    with pytest.raises(Invalid, match="write key=value"):
        read_label("rack")


@pytest.mark.parametrize(
    ("sort", "place"),
    [
        ("created", ["created", 10**30, 1, 0]),
        ("created", ["created", 1, -(10**30), 0]),
        ("created", ["created", 1, 1, 10**30]),
        ("name", ["name", "a\x00b", 1, 0]),
    ],
)
def test_a_place_that_no_database_could_look_for_is_no_cursor_of_ours(sort: str, place: list[object]) -> None:
    cursor = base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")
    with pytest.raises(Invalid, match="not issued by this server"):
        read_place(cursor, read_order(sort))
