"""Prints results: tables for people, TSV for pipes, JSON for programs. Data goes to stdout, messages to stderr."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TextIO

from simpletuner_fleet.cli.frame.command_name import as_called
from simpletuner_fleet.cli.frame.text import clean, harmless_json
from simpletuner_fleet.languages import _

STYLES = {
    "running": "cyan",
    "busy": "cyan",
    "idle": "green",
    "completed": "green",
    "connecting": "magenta",
    "draining": "yellow",
    "cancelling": "yellow",
    "blocked": "yellow",
    "offline": "dim",
    "cancelled": "dim",
    "failed": "red",
}
NOTHING = "-"
NARROWEST = 16
GAP = 2
SIX_DIGITS, EXACT = 1e5, 2.0**53


def tell(text: str) -> None:
    """Prints a message for people on stderr. One that cannot be written ends nothing that the command does."""
    try:
        print(text, file=sys.stderr)
    except OSError:  # its reader has left, or its disk is full
        close_quietly(sys.stderr)


def close_quietly(stream: TextIO) -> None:
    """Sends what is written from now on, and what waits to be, nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class Column(NamedTuple):
    title: str
    value: Callable[[dict[str, Any]], Any]
    right: bool = False
    shrinks: bool = False
    """Breaks into lines where the terminal is narrow."""
    goes: int = 0
    """Leaves when even that is not enough: the highest first, 0 never, as what changes the meaning of the others."""


class Output:
    def __init__(self, args: argparse.Namespace) -> None:
        self.format: str = getattr(args, "output", "table")
        fields: str | None = getattr(args, "fields", None)
        self.fields = [field.strip() for field in fields.split(",") if field.strip()] if fields else []
        self.quiet: bool = getattr(args, "quiet", False)
        self.color = not getattr(args, "no_color", False) and not os.environ.get("NO_COLOR")
        self.terminal = sys.stdout.isatty()

    @property
    def for_programs(self) -> bool:
        return self.format in ("json", "jsonl")

    @property
    def shows_result(self) -> bool:
        """Tells whether a command that usually only says what it did also prints what came of it: if asked how."""
        return self.format != "table" or bool(self.fields)

    def leaves_out(self, name: str) -> bool:
        """Tells whether what `item` prints lacks this field: only the id was asked for, or other fields."""
        return self.format == "name" or bool(self.fields and name not in self.fields)

    def say_once(self, text: str) -> None:
        """Says what is never shown again, or what a command waits for, also to users who asked for quiet."""
        print(clean(text), file=sys.stderr)

    def items(
        self, schema: str, items: list[dict[str, Any]], columns: Sequence[Column], *, id_field: str = "id"
    ) -> None:
        if self.format == "json":
            self.json({"schema": f"{schema}.v1", "items": [self.picked(item) for item in items]})
        elif self.format == "jsonl":
            for item in items:
                self.line(self.picked(item))
        elif self.format == "name":
            for item in items:
                self._name(item, id_field)
        else:
            self.table(items, self.chosen(columns))

    def item(self, item: dict[str, Any], rows: Sequence[Column], *, id_field: str = "id") -> None:
        """Prints one item, with a key and its value on each line."""
        if self.format == "json":
            self.json(self.picked(item))
        elif self.format == "jsonl":
            self.line(self.picked(item))
        elif self.format == "name":
            self._name(item, id_field)
        else:
            self._pairs([(row.title, shown(row.value(item))) for row in self.chosen(rows)])

    def changed(self, item: dict[str, Any]) -> None:
        """Prints one item of a list that goes on, on a line of its own and at once."""
        if self.format == "name":
            self._name(item, "id")
            sys.stdout.flush()
        else:
            self.line(self.picked(item))

    def _name(self, item: dict[str, Any], id_field: str) -> None:
        """Prints the id; nothing for what has none, such as a job that was not submitted."""
        name = item.get(id_field)
        if name is not None:
            print(clean(name))

    def json(self, document: Any) -> None:
        print(harmless_json(json.dumps(document, ensure_ascii=False, indent=2)))

    def line(self, document: Any) -> None:
        print(harmless_json(json.dumps(document, ensure_ascii=False)), flush=True)

    def picked(self, item: dict[str, Any]) -> dict[str, Any]:
        return {field: dig(item, field) for field in self.fields} if self.fields else item

    def chosen(self, columns: Sequence[Column]) -> Sequence[Column]:
        if not self.fields:
            return columns
        return [field(name) for name in self.fields]

    def table(self, items: list[dict[str, Any]], columns: Sequence[Column]) -> None:
        rows = [[shown(column.value(item)) for column in columns] for item in items]
        if self.terminal:
            self.print_rich(self.rich_table(rows, columns))
            return
        print("\t".join(clean(column.title) for column in columns))
        for row in rows:
            print("\t".join(row))

    def rich_table(self, rows: list[list[str]], columns: Sequence[Column]) -> Any:
        """Returns a table that fits the terminal; the columns that had to leave are named below it.

        Where even those that never leave do not fit, every row is a block of lines that has them all.
        """
        from rich.cells import cell_len  # heavy, and only a terminal needs it
        from rich.markup import escape
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        titles = [clean(_(column.title)) for column in columns]
        widths = [
            max(cell_len(title), *(cell_len(row[at]) for row in rows), 0) for at, title in enumerate(titles)
        ]
        places = fitting(columns, widths, self.console().width)
        if rows and not places:
            return _blocks([[(column.title, row[at]) for at, column in enumerate(columns)] for row in rows])
        places = places or list(range(len(columns)))
        left = [title for at, title in enumerate(titles) if at not in places]
        if left:
            note = _("No room here for %(titles)s; --json shows all.", titles=", ".join(left))
            table.caption, table.caption_justify = Text(note, style="dim"), "left"
        for at in places:
            column = columns[at]
            table.add_column(
                escape(titles[at]),
                no_wrap=not column.shrinks,
                overflow="fold",
                min_width=least(column, widths[at]),
                justify="right" if column.right else "left",
            )
        for row in rows:
            table.add_row(*(Text(row[at], style=STYLES.get(row[at], "")) for at in places))
        return table

    def print_rich(self, renderable: Any) -> None:
        self.console().print(renderable)

    def console(self) -> Any:
        from rich.console import Console  # heavy, and only a terminal needs it

        return Console(no_color=not self.color, highlight=False, soft_wrap=False)

    def _pairs(self, pairs: list[tuple[str, str]]) -> None:
        if not self.terminal:
            for key, value in pairs:
                print(f"{clean(key)}\t{value}")
            return
        self.print_rich(_blocks([pairs]))

    def say(self, text: str) -> None:
        """Prints a message for people on stderr, unless they asked for quiet."""
        if not self.quiet:
            tell(as_called(clean(text)))

    def say_all(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.say(text)

    @contextmanager
    def going_on_later(self) -> Iterator[None]:
        """Tells whoever interrupts a transfer meanwhile that nothing is lost."""
        try:
            yield
        except KeyboardInterrupt:
            if sys.stderr.isatty():  # which has shown ^C
                self.say("")
            self.say(_("Stopped. What has arrived is kept: the same command goes on from there."))
            raise

    def hint(self, text: str) -> None:
        """Prints what the user might do next, only where stderr is a terminal."""
        if not self.quiet and sys.stderr.isatty():
            tell(as_called(clean(text)))


def _blocks(items: Sequence[Sequence[tuple[str, str]]]) -> Any:
    """Returns a table with a key and its value on each line, and an empty line between two items."""
    from rich.table import Table  # heavy, and only a terminal needs it
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for at, pairs in enumerate(items):
        if at:
            table.add_row()
        for key, value in pairs:
            table.add_row(Text(clean(_(key))), Text(value, style=STYLES.get(value, "")))
    return table


def dig(item: Any, path: str) -> Any:
    for key in path.split("."):
        item = item.get(key) if isinstance(item, dict) else None
    return item


def shown(value: Any) -> str:
    if value is None or value == "" or value == [] or value == {}:
        return NOTHING
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    if isinstance(value, dict):
        return clean(", ".join(f"{key}={entry}" for key, entry in value.items()))
    if isinstance(value, list):
        return clean(", ".join(str(entry) for entry in value))
    if isinstance(value, float):
        return number_text(value)
    return clean(value)


def number_text(value: float) -> str:
    """Formats a number in six digits; more where its whole part has more, as bytes and seconds do."""
    return (
        f"{value:g}" if abs(value) < SIX_DIGITS or abs(value) > EXACT else f"{value:.1f}".removesuffix(".0")
    )


def field(
    name: str, title: str | None = None, *, right: bool = False, shrinks: bool = False, goes: int = 0
) -> Column:
    return Column(title or name.upper(), lambda item: dig(item, name), right, shrinks, goes)


def least(column: Column, width: int) -> int:
    return min(width, NARROWEST) if column.shrinks else width


def fitting(columns: Sequence[Column], widths: list[int], available: int) -> list[int]:
    """Returns the indices of the columns that stay in a narrow table, so that ids and states are never cut.

    There are none where those that never leave do not fit.
    """
    places = list(range(len(columns)))
    while sum(least(columns[at], widths[at]) + GAP for at in places) - GAP > available:
        leaving = max(places, key=lambda at: columns[at].goes)
        if not columns[leaving].goes:
            return []
        places.remove(leaving)
    return places
