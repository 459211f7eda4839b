"""Runs `simpletuner jobs events`: shows what happened to a job, and what its workers noted."""

import argparse
from typing import Any

from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.cli.frame.output import Output, field
from simpletuner_fleet.cli.frame.text import clean
from simpletuner_fleet.cli.remote import lookup
from simpletuner_fleet.cli.remote.api import Api, connected
from simpletuner_fleet.client.files.file_api import segment
from simpletuner_fleet.languages import _

LIST = (field("at"), field("what"), field("by"), field("told"))
MOST_NOTES_BESIDE = 5


def show(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        job_id = str(args.job) if getattr(args, "curl", False) else lookup.job_id(api, args.job)
        answer = api.get(f"/api/jobs/{segment(job_id)}/events")
        if out.format == "json":
            out.item({"schema": "events.v1", **answer}, ())
            return ExitCode.OK
        rows = [_event(event) for event in answer["events"]] + [_note(note) for note in answer["notes"]]
        out.items("events", sorted(rows, key=lambda row: str(row["at"])), LIST)
    return ExitCode.OK


def notes_beside(api: Api, job_id: str) -> list[str]:
    """Returns the newest notes of a job's workers, one line each."""
    notes = api.get(f"/api/jobs/{segment(job_id)}/events")["notes"]
    return [
        clean(_("note, attempt %(attempt)s: %(text)s", attempt=note["attempt"], text=note["text"]))
        for note in notes[-MOST_NOTES_BESIDE:]
    ]


def _event(event: dict[str, Any]) -> dict[str, Any]:
    details = event.get("details") or {}
    text = details.get("why") or ", ".join(
        f"{key} {value}" for key, value in details.items() if value not in (None, "", [])
    )
    return {"at": event["at"], "what": event["event_type"], "by": event["actor"], "told": text}


def _note(note: dict[str, Any]) -> dict[str, Any]:
    return {"at": note["at"], "what": note["kind"], "by": _by(note), "told": note["text"]}


def _by(note: dict[str, Any]) -> str:
    return _("attempt %(attempt)s", attempt=note["attempt"])
