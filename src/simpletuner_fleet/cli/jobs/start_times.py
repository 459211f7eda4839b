"""Reads `--not-before` and `--in`: turns a local time as people write it into one with its time zone."""

import argparse
from datetime import UTC, datetime, timedelta

from simpletuner_fleet.settings.values import CLOCK


def asked_start(args: argparse.Namespace, now: datetime | None = None) -> str | None:
    """Returns the moment that the options name, as the server reads it; None where neither is given."""
    now = now or datetime.now(UTC)
    if args.start_in is not None:
        return _iso(now + timedelta(seconds=args.start_in))
    return None if args.not_before is None else _iso(moment_of(args.not_before, now))


def moment_of(text: str, now: datetime) -> datetime:
    """Reads a time: a time of day means the next one to come, and a time without a zone is local."""
    here = now.astimezone()
    clock = CLOCK.fullmatch(text)
    if not clock:
        return datetime.fromisoformat(text).astimezone()
    today = here.replace(hour=int(clock[1]), minute=int(clock[2]), second=0, microsecond=0, tzinfo=None)
    first = today.astimezone()
    return first if first > now else (today + timedelta(days=1)).astimezone()


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")
