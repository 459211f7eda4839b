"""Finds out whether a page can be shown to somebody: a terminal, a display and a browser."""

import os
import sys
import webbrowser


def can_open() -> bool:
    """Tells whether there is a terminal and a display, which a service or a remote shell usually lacks."""
    has_display = sys.platform == "darwin" or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    return sys.stderr.isatty() and has_display


def has_browser() -> bool:
    """Tells whether a browser opens on this very machine; never in an SSH session, whatever its display."""
    if not can_open() or os.environ.get("SSH_CONNECTION") or os.environ.get("SSH_TTY"):
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True
