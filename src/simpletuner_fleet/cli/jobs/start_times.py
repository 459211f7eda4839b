"""`--not-before` and `--in`: a time as people write it, where they are, becomes one with its zone."""

import argparse
from datetime import UTC, datetime, timedelta

from simpletuner_fleet.settings.values import CLOCK


def asked_start(args: argparse.Namespace, now: datetime | None = None) -> str | None:
    """Returns the moment that the options name, for the server; None where neither is given."""
    now = now or datetime.now(UTC)
    if args.start_in is not None:
        return _iso(now + timedelta(seconds=args.start_in))
    return None if args.not_before is None else _iso(moment_of(args.not_before, now))


def moment_of(text: str, now: datetime) -> datetime:
    """A clock time is the next one to come, here; a time without a zone is one of here."""
    here = now.astimezone()
    clock = CLOCK.fullmatch(text)
    if not clock:
        return datetime.fromisoformat(text).astimezone()
    today = here.replace(hour=int(clock[1]), minute=int(clock[2]), second=0, microsecond=0, tzinfo=None)
    first = today.astimezone()
    return first if first > now else (today + timedelta(days=1)).astimezone()


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")
