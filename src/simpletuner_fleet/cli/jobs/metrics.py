"""Runs `simpletuner jobs metrics`."""

import argparse
import csv
import sys
from collections.abc import Sequence
from typing import Any

from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.cli.frame.output import Output, field
from simpletuner_fleet.cli.frame.text import clean
from simpletuner_fleet.cli.remote import lookup
from simpletuner_fleet.cli.remote.api import connected
from simpletuner_fleet.client.files.file_api import segment
from simpletuner_fleet.core.cells import harmless_cell
from simpletuner_fleet.languages import _

LIST = (
    field("key"),
    field("step", right=True),
    field("at"),
    field("min", right=True),
    field("max", right=True),
    field("last", right=True),
)
FIELDS = tuple(column.title.lower() for column in LIST)
SEEN_AT_ONCE = 20
FOR_PROGRAMS = 5_000


def show(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        job_id = str(args.job) if getattr(args, "curl", False) else lookup.job_id(api, args.job)
        query = {
            "key": args.key or None,
            "points": args.points or (SEEN_AT_ONCE if out.format == "table" else FOR_PROGRAMS),
            "attempt": args.attempt,
        }
        answer = api.get(f"/api/jobs/{segment(job_id)}/metrics", query)
        if out.format == "json":
            out.item({"schema": "metrics.v1", **answer}, ())
            return ExitCode.OK
        rows = [{"key": key, **point} for key, points in answer["series"].items() for point in points]
        if out.format == "csv":
            _csv(rows, out.fields or FIELDS)
        elif out.format == "name":
            for key in answer["keys"]:
                print(clean(key))
        else:
            if not rows and not out.for_programs:
                names = ", ".join(answer["keys"])
                out.hint(_("Last report: %(known)s", known=names) if names else _("No metrics reported yet."))
            out.items("metrics", rows, LIST)
    return ExitCode.OK


def _csv(rows: list[dict[str, Any]], fields: Sequence[str]) -> None:
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(fields)
    for row in rows:
        table.writerow("" if row.get(name) is None else _cell(row[name]) for name in fields)


def _cell(value: Any) -> str:
    """Returns text for a CSV cell: names, which the trainer chose, are made harmless; numbers keep their sign."""
    text = clean(value)
    return harmless_cell(text) if isinstance(value, str) else text
