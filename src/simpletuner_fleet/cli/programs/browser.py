"""Opens a page in a browser where there is a terminal with a display."""

import html
import webbrowser
from pathlib import Path

from simpletuner_fleet.cli.frame.private_files import write_private
from simpletuner_fleet.cli.frame.screen import can_open

DOOR = "open-console.html"


def open_page(url: str, folder: Path) -> None:
    """Opens the page by way of a private file, since everybody on the machine sees a browser's arguments."""
    if not can_open():
        return
    door = folder / DOOR
    target = html.escape(url, quote=True)
    write_private(
        door, f'<!doctype html><meta http-equiv="refresh" content="0;url={target}"><title>SimpleTuner</title>'
    )
    webbrowser.open(door.as_uri())
