"""Opens a page where somebody sits in front of a screen."""

import html
import os
import sys
import webbrowser
from pathlib import Path

from simpletuner_fleet.cli.frame.private_files import write_private

DOOR = "open-console.html"


def can_open() -> bool:
    """Tells whether there is a terminal and a display: a service or a remote shell has none."""
    has_display = sys.platform == "darwin" or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    return sys.stderr.isatty() and has_display


def open_page(url: str, folder: Path) -> None:
    """Goes by way of a file that only its owner can read: everybody on the machine sees a browser's arguments."""
    if not can_open():
        return
    door = folder / DOOR
    target = html.escape(url, quote=True)
    write_private(
        door, f'<!doctype html><meta http-equiv="refresh" content="0;url={target}"><title>SimpleTuner</title>'
    )
    webbrowser.open(door.as_uri())
