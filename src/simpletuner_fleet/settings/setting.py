"""What one setting is: a row of the table that the command line, the console and `doctor` all read."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Setting(NamedTuple):
    """One setting: its flag, its environment variable, its key in the file, its default and its help."""

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
