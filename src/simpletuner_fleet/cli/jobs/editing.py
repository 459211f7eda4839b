"""Runs `simpletuner jobs edit`, `pin`, `tag` and `note`."""

import argparse
from typing import Any

from simpletuner_fleet.cli.frame.errors import ExitCode, fail, usage
from simpletuner_fleet.cli.frame.output import Output
from simpletuner_fleet.cli.frame.words import label_patterns_of
from simpletuner_fleet.cli.jobs import artifacts, job_text
from simpletuner_fleet.cli.jobs.start_times import asked_start
from simpletuner_fleet.cli.remote import lookup
from simpletuner_fleet.cli.remote.api import Api, connected
from simpletuner_fleet.cli.remote.lookup import segment
from simpletuner_fleet.languages import _


def edit(args: argparse.Namespace) -> int:
    out = Output(args)
    changes = _changes(args)
    if not changes:
        raise usage(
            _("there is nothing to change"), _("no option was given"), "simpletuner jobs edit ID --gpus 2"
        )
    with connected(args) as api:
        job_id = _id(api, args)
        job = api.patch(f"/api/jobs/{segment(job_id)}", changes)
        out.say(_("%(id)s is changed", id=job_id))
        out.item(job, job_text.DETAIL)
    return ExitCode.OK


def _changes(args: argparse.Namespace) -> dict[str, Any]:
    requested = {
        "target": args.target,
        "worker_labels": {} if args.no_labels else label_patterns_of(args.label) or None,
        "gpus": args.gpus,
        "nodes": args.nodes,
        "min_vram_gb": args.min_vram,
        "priority": args.priority,
        "max_retries": args.max_retries,
        "time_limit_s": args.time_limit,
        "on_max_cost": args.on_max_cost,
    }
    changes = {name: value for name, value in requested.items() if value is not None}
    if "max_price" in args:
        changes["max_price_micros"] = args.max_price
    if args.not_before == "":
        changes["not_before"] = None
    elif (start := asked_start(args)) is not None:
        changes["not_before"] = start
    if "max_cost" in args:
        changes["max_cost_micros"] = args.max_cost
    return changes if args.name is None else {**changes, "name": args.name or None}


def pin(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        job_id = lookup.job_id(api, args.job)
        manifest = _checkpoint(api, job_id, args.step)
        path = f"/api/jobs/{segment(job_id)}/artifacts/{segment(manifest['id'])}/pin"
        answer = api.delete(path) if args.remove else api.put(path, None)
        place = {"step": manifest["step"], "id": job_id}
        if args.remove:
            out.say(_("the checkpoint of step %(step)s of %(id)s is no longer pinned", **place))
        else:
            out.say(_("the checkpoint of step %(step)s of %(id)s is pinned", **place))
        if out.shows_result:
            out.item(answer, artifacts.LIST)
    return ExitCode.OK


def _checkpoint(api: Api, job_id: str, step: int | None) -> dict[str, Any]:
    stored = api.items(f"/api/jobs/{segment(job_id)}/artifacts", "manifests", {}, lookup=True)
    checkpoints = [one for one in stored if one["kind"] == "checkpoint" and step in (None, one["step"])]
    if checkpoints:
        return max(checkpoints, key=lambda one: one["step"] or 0)
    raise fail(
        _("there is no such checkpoint"),
        _("job %(id)s has stored none, or none of this step", id=job_id),
        f"simpletuner jobs artifacts {job_id}",
        "not_found",
        ExitCode.NOT_FOUND,
    )


def _id(api: Api, args: argparse.Namespace) -> str:
    return str(args.job) if getattr(args, "curl", False) else lookup.job_id(api, args.job)


def tag(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        job_id = _id(api, args)
        job = api.post(f"/api/jobs/{segment(job_id)}/tags", {"add": args.tags, "remove": args.remove})
        tags = ", ".join(job.get("tags", [])) or _("none")
        out.say(_("tags of %(id)s: %(tags)s", id=job_id, tags=tags))
        if out.shows_result:
            out.item(job, job_text.DETAIL)
    return ExitCode.OK


def note(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        job_id = _id(api, args)
        job = api.put(f"/api/jobs/{segment(job_id)}/note", {"note": args.text})
        out.say(_("the note of %(id)s is saved", id=job_id))
        if out.shows_result:
            out.item(job, job_text.DETAIL)
    return ExitCode.OK
