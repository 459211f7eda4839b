"""Whether somebody sits in front of a screen."""

import os
import sys


def can_open() -> bool:
    """Tells whether there is a terminal and a display: a service or a remote shell has none."""
    has_display = sys.platform == "darwin" or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    return sys.stderr.isatty() and has_display
