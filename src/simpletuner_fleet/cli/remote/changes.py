"""Tells the commands when to read again what they show, by the server's event stream."""

import time
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

import httpx2

from simpletuner_fleet.cli.frame.errors import CliError
from simpletuner_fleet.cli.remote.api import Api, will_pass
from simpletuner_fleet.client.answers import EVENTS
from simpletuner_fleet.client.time_limits import pieces
from simpletuner_fleet.languages import _
from simpletuner_fleet.protocol.sse import Decoder, EventTooLarge

QUIET_S = 20.0
"""The server pings every 15 s; a stream silent for longer is dead."""
LOOK_AGAIN_S = 15.0
LATE_S = 1.0
"""A stream that could keep somebody waiting longer than this after the time is up is opened anew."""
NO_NEWS = ("ready", "ping")
PAUSE_S = 0.3
RECONNECT_S = 2.0
Seen = TypeVar("Seen")


def looks(api: Api, read: Callable[[], Seen], until: float | None = None) -> Iterator[Seen]:
    """Yields what is read after every change. Once something was, a server that restarts is waited for."""
    has_read = False
    for _change in changes(api, until):
        try:
            seen = read()
        except CliError as error:
            if not has_read or not will_pass(error):
                raise
        else:
            has_read = True
            yield seen


def changes(api: Api, until: float | None = None) -> Iterator[None]:
    """Yields at once, after every change, and every now and then, until the (monotonic) time is up."""
    stood = True
    while not _over(until):
        stands = False
        silent_s = _left(until, QUIET_S)
        try:
            with api.stream("/api/events", read_timeout_s=silent_s, kind=EVENTS) as answer:
                stands = True
                # Looked at only once the stream stands, so that no change falls in between.
                yield
                if (yield from _news(answer, until, silent_s)):
                    continue
        except (httpx2.TransportError, EventTooLarge):
            pass
        except CliError as error:
            if not will_pass(error):
                raise
        if not stands:
            # Whoever looks is told why no server answers, and sees changes also where no event comes through.
            yield
        if not _over(until):
            # Where none ever comes through, it would be said every few seconds for as long as a training takes.
            if stands or stood:
                api.note(_("live updates interrupted; reconnecting …"))
            stood = stands
            time.sleep(_left(until, RECONNECT_S))


def _news(answer: httpx2.Response, until: float | None, silent_s: float) -> Generator[None, None, bool]:
    """Yields after every change that the stream tells of, and every now and then.

    Returns whether it left a stream that goes on, since that could be silent until after the time is up.
    """
    last_look_at = time.monotonic()
    decoder = Decoder()
    for chunk in pieces(answer.iter_bytes(), silent_s):
        news = [event for event in decoder.feed(chunk) if event.name not in NO_NEWS]
        if news or time.monotonic() - last_look_at > LOOK_AGAIN_S:
            time.sleep(max(0.0, last_look_at + PAUSE_S - time.monotonic()))
            yield
            last_look_at = time.monotonic()
        if _over(until) or (until is not None and time.monotonic() + silent_s > until + LATE_S):
            return True
    return False


def _over(until: float | None) -> bool:
    return until is not None and time.monotonic() >= until


def _left(until: float | None, most_s: float) -> float:
    return most_s if until is None else max(0.05, min(most_s, until - time.monotonic()))
