"""What changed between two configs, as a table shows it."""

import asyncio
from typing import Any

import msgspec

from simpletuner_fleet.core.configs.bundle import Bundle
from simpletuner_fleet.core.configs.bundle_diff import MOST_LISTED
from simpletuner_fleet.web.parts.jobs.differences import INDENTED_BYTES, VALUE_CHARS, differences, json_text


def of(value: Any) -> Bundle:
    return Bundle(settings={"x": value})


async def test_large_configs_are_compared_while_the_server_goes_on() -> None:
    comparing = asyncio.create_task(differences(of([0] * 50_000), of([1] * 50_000)))
    turns = 0
    while not comparing.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 10
    shown = await comparing
    assert (len(shown.rows), shown.hidden) == (MOST_LISTED, 50_000 - MOST_LISTED)


async def test_a_long_value_is_shown_from_its_beginning_and_not_indented_as_a_whole() -> None:
    (row,) = (await differences(of(1), of([0] * 100_000))).rows
    assert row.now == ("[" + "0, " * VALUE_CHARS)[:VALUE_CHARS]


async def test_a_short_value_is_indented() -> None:
    (row,) = (await differences(of({"a": [1]}), of(2))).rows
    assert row.was == '{\n  "a": [\n    1\n  ]\n}'


def test_indentation_does_not_make_a_deep_text_many_times_as_long() -> None:
    deep: Any = [0] * 2 * INDENTED_BYTES
    for _ in range(60):
        deep = [deep]
    text = json_text(deep)
    assert len(text) < 2 * len(msgspec.json.encode(deep))
    assert msgspec.json.decode(text) == deep
