"""Ends a program at once when Ctrl-C comes while it is being loaded, or after its work: a stack trace would say nothing.

Most of the time of a short command is spent loading it, so that is when whoever has mistyped presses Ctrl-C.
"""

import os

INTERRUPTED = 130

try:
    import signal
except KeyboardInterrupt:
    os._exit(INTERRUPTED)


def leave_at_once() -> None:
    """Changes nothing where somebody else has decided about Ctrl-C, as a shell does for what runs in the background."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def raise_again() -> None:
    """Makes Ctrl-C an exception again, which what is at work needs to clean up."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: object) -> None:
    os._exit(INTERRUPTED)
