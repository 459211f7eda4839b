"""Lists that redraw as things change: a live table on a terminal, JSON lines elsewhere."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from simpletuner_fleet.cli.api import Api
from simpletuner_fleet.cli.nudges import nudges
from simpletuner_fleet.cli.output import Column, Output, shown

Items = list[dict[str, Any]]


def watch(
    api: Api,
    out: Output,
    read: Callable[[], Items],
    columns: Sequence[Column],
    done: Callable[[Items], bool] = lambda items: False,
) -> Items:
    """Until `done`, or until the user has seen enough."""
    seen = _redraw if out.terminal and not out.for_programs else _lines
    items: Items = []
    for items in seen(api, out, read, columns):
        if done(items):
            break
    return items


def _lines(api: Api, out: Output, read: Callable[[], Items], columns: Sequence[Column]) -> Iterator[Items]:
    """Each thing once, and again whenever it is different."""
    last: dict[str, dict[str, Any]] = {}
    for _ in nudges(api):
        items = read()
        for item in items:
            if last.get(item["id"]) != item:
                out.line(out.picked(item))
        last = {item["id"]: item for item in items}
        yield items


def _redraw(api: Api, out: Output, read: Callable[[], Items], columns: Sequence[Column]) -> Iterator[Items]:
    from rich.live import Live  # heavy, and only a terminal needs it

    chosen = out.chosen(columns)
    with Live(console=out.console(), auto_refresh=False, vertical_overflow="crop") as live:
        for _ in nudges(api):
            items = read()
            rows = [[shown(column.value(item)) for column in chosen] for item in items]
            live.update(out.rich_table(rows, chosen), refresh=True)
            yield items
