"""Runs `simpletuner usage`: shows who has used how much and at what cost."""

import argparse
import sys
from typing import Any

from simpletuner_fleet.cli.frame.amounts import known_money
from simpletuner_fleet.cli.frame.errors import ExitCode, not_together
from simpletuner_fleet.cli.frame.output import Column, Output, field
from simpletuner_fleet.cli.frame.text import clean_lines
from simpletuner_fleet.cli.remote.api import connected
from simpletuner_fleet.core.money.reports import NOT_SHOWN
from simpletuner_fleet.languages import N_, _, spoken_number

USAGE = "/api/usage"
HEADINGS = {
    "person": N_("PERSON"),
    "team": N_("TEAM"),
    "config": N_("CONFIG"),
    "gpu": N_("GPU"),
    "day": N_("DAY"),
}


def usage(args: argparse.Namespace) -> int:
    out = Output(args)
    if args.csv and (out.format != "table" or out.fields):
        raise not_together("--csv", "--fields" if out.fields else "--output", "simpletuner usage --csv")
    query = {"by": args.by, "since": args.since, "until": args.until}
    with connected(args) as api:
        if args.csv:
            table = api.content(f"{USAGE}/export", query, kind="text/csv")
            sys.stdout.write(clean_lines(table.decode(errors="replace").replace("\r\n", "\n")))
            return ExitCode.OK
        report = api.page(USAGE, "lines", query)
        if out.format == "json":
            out.item(report, ())
            return ExitCode.OK
        currency = str(report["currency"])
        out.items("usage", report["lines"], _columns(args.by, currency), id_field="key")
        total = report["total"]
        if out.for_programs:
            return ExitCode.OK
        out.say(
            _(
                "In all %(hours)s GPU-hours, %(cost)s, from %(since)s to %(until)s.",
                hours=spoken_number(total["gpu_hours"], 1),
                cost=cost(total, currency),
                since=str(report["since"])[:16],
                until=str(report["until"])[:16],
            )
        )
    return ExitCode.OK


def cost(line: dict[str, Any], currency: str) -> str:
    """Formats a cost; one that is not known is never shown as 0."""
    hours, unpriced = line["gpu_hours"], line["unpriced_gpu_hours"]
    if unpriced and unpriced >= hours:
        return _("cost not known")
    return known_money(line["cost_micros"], currency, at_least=line["at_least"]) or ""


def _columns(by: str, currency: str) -> tuple[Column, ...]:
    return (
        Column(
            HEADINGS[by], lambda line: _("private") if line["name"] == NOT_SHOWN else line["name"] or None
        ),
        field("attempts", right=True),
        Column("GPU-HOURS", lambda line: f"{line['gpu_hours']:.1f}", right=True),
        Column("COST", lambda line: cost(line, currency), right=True),
    )
