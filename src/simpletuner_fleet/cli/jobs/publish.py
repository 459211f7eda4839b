"""Runs `simpletuner jobs publish`: sends a completed job's model to the Hugging Face Hub or the server's folder."""

import argparse
from typing import Any

from simpletuner_fleet.cli.frame.errors import ExitCode, not_together, only_with
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
    """Publishes the model; without --to, as it was asked for before."""
    out = Output(args)
    _insist_on_destination(args)
    with connected(args) as api:
        job_id = str(args.job) if getattr(args, "curl", False) else lookup.job_id(api, args.job)
        if args.show:
            out.item(api.get(f"/api/jobs/{segment(job_id)}/publication"), DETAIL, id_field="job_id")
            return ExitCode.OK
        body: dict[str, Any] = {}
        if args.to:
            body = {
                "to": args.to,
                "secret": args.secret,
                "private": not args.public,
                "branch": args.branch or "main",
            }
        publication = api.post(f"/api/jobs/{segment(job_id)}/publish", body or None)
        out.item(publication, DETAIL, id_field="job_id")
        out.hint(_("Check its progress:  simpletuner jobs publish %(job_id)s --show", job_id=job_id))
    return ExitCode.OK


def _insist_on_destination(args: argparse.Namespace) -> None:
    """Raises for options that would be ignored: what is published again goes where and as it went before."""
    details = {"--secret": args.secret, "--public": args.public, "--branch": args.branch}
    given = next((flag for flag, value in details.items() if value), None)
    if args.show and (args.to or given):
        raise not_together(
            "--show", "--to" if args.to else str(given), f"simpletuner jobs publish {args.job} --show"
        )
    if given and not args.to:
        raise only_with(given, "--to", f"simpletuner jobs publish {args.job} --to hf://OWNER/NAME {given} …")
