"""Runs the `simpletuner audit` commands: lists, counts and verifies the entries of the audit log."""

import argparse
from datetime import UTC, datetime, timedelta

from simpletuner_fleet.cli.frame.errors import ExitCode, usage
from simpletuner_fleet.cli.frame.output import Column, Output, field
from simpletuner_fleet.cli.frame.quantities import parse
from simpletuner_fleet.cli.frame.text import clean
from simpletuner_fleet.cli.remote.api import connected
from simpletuner_fleet.core.events import SECURITY
from simpletuner_fleet.languages import _, ngettext
from simpletuner_fleet.settings import values

LIST = (
    field("id", right=True),
    Column("AT", lambda entry: str(entry.get("at", ""))[:19].replace("T", " ")),
    field("event_type", "EVENT"),
    field("actor", goes=1),
    field("ip", "FROM", goes=2),
    Column("TARGET", lambda entry: entry.get("target_id")),
    field("details", shrinks=True, goes=3),
)
STATS = (field("event_type", "EVENT"), field("entries", right=True))


def list_(args: argparse.Namespace) -> int:
    out = Output(args)
    if args.security and args.event_type:
        raise usage(
            _("%(flag)s cannot be used this way", flag="--security"),
            _("it stands for several types, and --event-type for one"),
            "--security",
        )
    query = {
        "event_type": SECURITY if args.security else args.event_type,
        "actor_id": args.actor_id,
        "target_type": args.target_type,
        "target_id": args.target_id,
        "since": moment(args.since, "--since"),
        "until": moment(args.until, "--until"),
        "limit": args.limit,
        "offset": args.offset or None,
    }
    with connected(args) as api:
        page = api.page("/api/audit", "entries", query)
        out.items("audit", page["entries"], LIST)
        left = int(page.get("total") or 0) - args.offset - len(page["entries"])
        if left > 0 and not out.for_programs:
            out.hint(
                _("%(left)s more:  --offset %(offset)s", left=left, offset=args.offset + len(page["entries"]))
            )
    return ExitCode.OK


def stats(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        result = api.get("/api/audit/stats")
        if out.for_programs:
            out.item(result, ())
        else:
            by_count = sorted(result["by_type"].items(), key=lambda item: (-item[1], item[0]))
            out.items(
                "audit",
                [{"event_type": kind, "entries": count} for kind, count in by_count],
                STATS,
                id_field="event_type",
            )
    return ExitCode.OK


def types(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        result = api.get("/api/audit/types")
        if out.for_programs or out.fields:
            out.item(result, ())
        else:
            print("\n".join(clean(kind) for kind in result["types"]))
    return ExitCode.OK


def verify(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        result = api.get("/api/audit/verify")
        if out.shows_result:
            out.item(result, ())
        else:
            print(_verdict(result["valid"], result["checked"]))
            if result.get("emptied"):
                print(
                    "  "
                    + _("from entry %(seq)s on: older ones have their hash alone", seq=result["emptied"] + 1)
                )
            for problem in result.get("problems") or ():
                print("  " + clean(_("entry %(seq)s: %(what)s", seq=problem["seq"], what=problem["what"])))
        return ExitCode.OK if result["valid"] else ExitCode.FAILED


def _verdict(valid: bool, checked: int) -> str:
    if valid:
        return ngettext("valid: %(n)s entry checked", "valid: %(n)s entries checked", checked)
    return ngettext("NOT VALID: %(n)s entry checked", "NOT VALID: %(n)s entries checked", checked)


def moment(text: str | None, flag: str) -> str | None:
    """Returns a time unchanged; turns a span such as `2h` into the time that long ago."""
    if text is None or parse(text):
        return text
    try:
        return (
            (datetime.now(UTC) - timedelta(seconds=values.seconds(text))).isoformat().replace("+00:00", "Z")
        )
    except (ValueError, OverflowError):
        raise usage(
            _("%(flag)s cannot be used this way", flag=flag),
            _(
                "expected a time such as 2026-11-15T10:00:00Z or a span such as 2h, got '%(given)s'",
                given=text,
            ),
            f"{flag} 2h",
        ) from None
