"""Shows lists that change: a table that is redrawn on a terminal, elsewhere a line for each item that has changed."""

import sys
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from simpletuner_fleet.cli.frame.output import Column, Output, shown
from simpletuner_fleet.cli.remote.api import Api
from simpletuner_fleet.cli.remote.changes import looks

Items = list[dict[str, Any]]


def watch(
    api: Api,
    out: Output,
    read: Callable[[], Items],
    columns: Sequence[Column],
    is_done: Callable[[Items], bool] = lambda items: False,
    draw: Callable[[Items], Any] | None = None,
) -> Items:
    """Shows items until `is_done` or the user stops it: on a terminal as a table, or as `draw` renders them."""
    live = out.terminal and out.format == "table"
    items: Items = []
    for items in _redraw(api, out, read, columns, draw) if live else _lines(api, out, read):
        if is_done(items):
            break
    return items


def _lines(api: Api, out: Output, read: Callable[[], Items]) -> Iterator[Items]:
    """Prints each item once, and again whenever it has changed."""
    last: dict[str, dict[str, Any]] = {}
    for items in looks(api, read):
        for item in items:
            if last.get(item["id"]) != item:
                out.changed(item)
        last = {item["id"]: item for item in items}
        yield items


def _redraw(
    api: Api,
    out: Output,
    read: Callable[[], Items],
    columns: Sequence[Column],
    draw: Callable[[Items], Any] | None,
) -> Iterator[Items]:
    from rich.live import Live  # heavy, and only a terminal needs it

    shown_columns = out.chosen(columns)

    def table(items: Items) -> Any:
        rows = [[shown(column.value(item)) for column in shown_columns] for item in items]
        return out.rich_table(rows, shown_columns)

    with (
        _keys_unseen(),
        Live(console=out.console(), auto_refresh=False, vertical_overflow="ellipsis") as live,
    ):
        for items in looks(api, read):
            live.update((draw or table)(items), refresh=True)
            yield items


@contextmanager
def _keys_unseen() -> Iterator[None]:
    """Turns off the echo: a key shown in the middle of the table, even ^C, would shift what is drawn next."""
    if not sys.stdin.isatty():
        yield
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    quiet = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(terminal, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
