"""`simpletuner jobs tag`, `simpletuner jobs note`"""

import argparse

from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.cli.frame.output import Output
from simpletuner_fleet.cli.jobs import job_text
from simpletuner_fleet.cli.remote import lookup
from simpletuner_fleet.cli.remote.api import Api, connected
from simpletuner_fleet.cli.remote.lookup import segment
from simpletuner_fleet.languages import _


def tag(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        job_id = _id(api, args)
        job = api.post(f"/api/jobs/{segment(job_id)}/tags", {"add": args.tags, "remove": args.remove})
        tags = ", ".join(job.get("tags", [])) or _("none")
        out.say(_("tags of %(id)s: %(tags)s", id=job_id, tags=tags))
        if out.for_programs:
            out.item(job, job_text.DETAIL)
    return ExitCode.OK


def note(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        job_id = _id(api, args)
        job = api.put(f"/api/jobs/{segment(job_id)}/note", {"note": args.text})
        out.say(_("the note of %(id)s is saved", id=job_id))
        if out.for_programs:
            out.item(job, job_text.DETAIL)
    return ExitCode.OK


def _id(api: Api, args: argparse.Namespace) -> str:
    return str(args.job) if getattr(args, "curl", False) else lookup.job_id(api, args.job)
