"""Runs `simpletuner jobs publish`: sends a completed job's model to the Hugging Face Hub or the server's folder."""

import argparse
from typing import Any

from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.cli.frame.output import Column, Output, field
from simpletuner_fleet.cli.frame.quantities import ago
from simpletuner_fleet.cli.remote import lookup
from simpletuner_fleet.cli.remote.api import connected
from simpletuner_fleet.client.files.file_api import segment
from simpletuner_fleet.languages import _

DETAIL = (
    field("job_id", "ID"),
    field("to"),
    field("state"),
    field("tries"),
    field("error"),
    Column("URL", lambda publication: publication.get("url")),
    Column("ASKED", lambda publication: ago(publication.get("created_at"))),
)


def publish(args: argparse.Namespace) -> int:
    """Publishes the model; without --to, where publishing is under way already, it only shows how far it is."""
    out = Output(args)
    with connected(args) as api:
        job_id = str(args.job) if getattr(args, "curl", False) else lookup.job_id(api, args.job)
        if args.show:
            out.item(api.get(f"/api/jobs/{segment(job_id)}/publication"), DETAIL, id_field="job_id")
            return ExitCode.OK
        body: dict[str, Any] = {}
        if args.to:
            body = {"to": args.to, "secret": args.secret, "private": not args.public, "branch": args.branch}
        publication = api.post(f"/api/jobs/{segment(job_id)}/publish", body or None)
        out.item(publication, DETAIL, id_field="job_id")
        out.hint(_("Check its progress:  simpletuner jobs publish %(job_id)s --show", job_id=job_id))
    return ExitCode.OK
