"""Defines a setting: a row of the table that the command line, the console and `doctor` all read."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Setting(NamedTuple):
    """Describes one setting: its flag, environment variable, key in the file, default and help."""

    name: str
    parse: Callable[[Any], Any]
    help: str
    flags: tuple[str, ...] = ()
    env: str = ""
    default: Any = None
    metavar: str | None = None
    action: str = "store"
    """`store`, `switch` (present or not), `toggle` (--x and --no-x) or `append`."""
    secret: bool = False
    on_console: bool | None = None
    """Whether the console's settings page shows it. Every setting of the server says so; no other has a page."""
