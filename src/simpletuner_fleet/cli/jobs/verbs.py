"""Runs the `simpletuner jobs` commands that list, show, watch, wait for and steer single jobs."""

import argparse
from typing import Any

from simpletuner_fleet.cli.frame.command_name import as_called
from simpletuner_fleet.cli.frame.errors import CliError, ExitCode, fail, not_together
from simpletuner_fleet.cli.frame.output import Output
from simpletuner_fleet.cli.jobs import job_progress, job_text
from simpletuner_fleet.cli.jobs import logs as job_logs
from simpletuner_fleet.cli.jobs.events import notes_beside
from simpletuner_fleet.cli.jobs.job_text import TERMINAL, WAITING
from simpletuner_fleet.cli.jobs.outlook import outlook_lines, outlook_of
from simpletuner_fleet.cli.jobs.waiting import Job, wait_for_end
from simpletuner_fleet.cli.remote import lookup
from simpletuner_fleet.cli.remote.advice import of_reason
from simpletuner_fleet.cli.remote.api import Api, connected, new_key
from simpletuner_fleet.cli.remote.watch import watch as watch_items
from simpletuner_fleet.client.files.file_api import segment
from simpletuner_fleet.languages import _, current, ngettext
from simpletuner_fleet.languages.details import detail_text


def list_(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        query = {**searched(args), "sort": args.sort}
        if args.watch:
            watch_items(api, out, lambda: lookup.pages(api, query, args.limit), job_text.LIST)
            return ExitCode.OK
        jobs, total = lookup.counted_pages(api, query, args.limit, lookup=False)
        if not jobs and not out.for_programs:
            out.hint(_nothing_found(args))
        out.items("jobs", jobs, job_text.LIST)
        if total is not None and total > len(jobs) and not out.for_programs:
            out.hint(_("%(n)s of %(total)s jobs are shown. For more: --limit N", n=len(jobs), total=total))
        stuck = next((job for job in jobs if job["status"] in WAITING and job_text.reason(job)), None)
        if stuck and not out.for_programs:
            out.hint(_("Why is it waiting?  simpletuner jobs explain %(id)s", id=stuck["id"]))
    return ExitCode.OK


def searched(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the search options under the names that the API gives them."""
    asked = {
        "status": args.status,
        "owner": args.owner,
        "worker": args.worker,
        "config": args.config_name,
        "trainer": args.trainer,
        "dataset": args.dataset,
        "label": args.label,
        "tag": args.tag,
        "reason": args.reason,
        "since": args.since,
        "until": args.until,
        "ended_since": args.ended_since,
        "ended_until": args.ended_until,
        "q": args.find,
    }
    return {name: value for name, value in asked.items() if value}


def _nothing_found(args: argparse.Namespace) -> str:
    if searched(args):
        return _("No job matches.")
    return _("No jobs yet. Submit one:  simpletuner jobs submit CONFIG")


def get(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        job = _direct(api, args, args.job)
        out.item(job, job_text.DETAIL)
        if not out.for_programs and job.get("attempt"):
            for note in notes_beside(api, str(job["id"])):
                out.say(note)
        if not out.for_programs and (publication := job.get("publication")):
            _tell_publication(publication, out)
        if out.format == "table" and not out.fields and job["status"] == "queued":
            for line in outlook_lines(outlook_of(api, str(job["id"])), _asked_for(job)):
                out.say(line)
        for step in job_text.advice(job) if not out.for_programs else ():
            out.hint(_("next: %(step)s", step=step))
    return ExitCode.OK


def _tell_publication(publication: dict[str, Any], out: Output) -> None:
    out.say(
        _(
            "publishing to %(to)s: %(state)s %(detail)s",
            to=publication["to"],
            state=publication["state"],
            detail=publication.get("url") or publication.get("error") or "",
        ).rstrip()
    )


def watch(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        if not args.job:
            watch_items(api, out, lambda: lookup.pages(api, {}, 50), job_text.LIST)
            return ExitCode.OK
        job_id = lookup.job_id(api, args.job)
        ended = watch_items(
            api,
            out,
            lambda: [lookup.job(api, job_id)],
            job_text.LIST,
            is_done=lambda items: items[0]["status"] in TERMINAL,
            draw=None if out.fields else lambda items: job_progress.drawn(items[0], out),
        )
        return _exit_of(ended[0]) if ended else ExitCode.OK


def explain(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        job_id = _id_for_call(api, args)
        answer = api.get(f"/api/jobs/{segment(job_id)}/explain")
        outlook = outlook_of(api, job_id)
        if out.for_programs or out.fields:
            out.item({**answer, "outlook": outlook}, ())
            return ExitCode.OK
        for line in job_text.explained(answer):
            print(line)
        if outlook.get("start") or outlook.get("now_with"):
            for line in outlook_lines(outlook, _asked_for(lookup.job(api, job_id))):
                print(line)
        for step in job_text.fixes(answer) or of_reason(str(answer.get("code"))):
            out.say(_("next: %(step)s", step=step))
    return ExitCode.OK


def _asked_for(job: Job) -> dict[str, Any]:
    return {**(job.get("requires") or {}), "target": job.get("target")}


def wait(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        job = wait_for_end(api, args.job, args.timeout)
        out.item(job, job_text.DETAIL)
        return ExitCode.OK if args.until == "terminal" else _exit_of(job)


def logs(args: argparse.Namespace) -> int:
    with connected(args) as api:
        job_id = _id_for_call(api, args)
        request = job_logs.LogRequest(
            follow=args.follow,
            tail=args.tail,
            since=args.since,
            attempt=args.attempt,
            rank=args.rank,
            grep=args.grep,
            timestamps=args.timestamps,
            raw=args.raw,
            colours=Output(args).color,
        )
        job_logs.show(api, job_id, request)
    return ExitCode.OK


def cancel(args: argparse.Namespace) -> int:
    if not args.jobs:
        raise fail(
            _("no job was named"),
            _("cancel needs the ids of jobs, or --all"),
            as_called("simpletuner jobs cancel ID"),
            "E_USAGE",
            ExitCode.USAGE,
        )
    if args.status:
        raise not_together("--status", "ID", "simpletuner jobs cancel --all --status queued")
    out = Output(args)
    with connected(args) as api:
        if args.dry_run:
            return _say_cancellable(out, [_direct(api, args, name) for name in args.jobs])
        cancelled = []
        for name in args.jobs:
            job_id = name if getattr(args, "curl", False) else lookup.job_id(api, name)
            answer = dict(
                api.post(f"/api/jobs/{segment(job_id)}/cancel", _cancel_body(args)) or {"id": job_id}
            )
            cancelled.append(answer)
            sentence = detail_text(current(), str((answer.get("stopping") or {}).get("sentence") or ""))
            out.say(
                _(
                    "%(job_id)s is %(told)s",
                    job_id=job_id,
                    told=sentence or answer.get("status", "cancelling"),
                )
            )
        if out.shows_result:
            out.items("jobs", cancelled, job_text.LIST)
    return ExitCode.OK


def _say_cancellable(out: Output, jobs: list[Job]) -> int:
    """Shows which jobs would be cancelled: those that have not ended."""
    cancellable = [job for job in jobs if job["status"] not in TERMINAL]
    out.items("jobs", cancellable, job_text.LIST)
    count = len(cancellable)
    out.say(
        ngettext("%(n)s job matches; nothing was changed", "%(n)s jobs match; nothing was changed", count)
    )
    return ExitCode.OK


def _cancel_body(args: argparse.Namespace) -> dict[str, Any] | None:
    body = {"checkpoint_first": args.checkpoint_first or None, "grace_s": args.grace}
    return {key: value for key, value in body.items() if value is not None} or None


def checkpoint(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        job_id = _id_for_call(api, args)
        job = api.post(f"/api/jobs/{segment(job_id)}/checkpoint")
        out.say(
            _(
                "%(job_id)s is asked for a checkpoint and trains on. To see it once it is stored:  simpletuner jobs "
                "artifacts %(job_id)s",
                job_id=job_id,
            )
        )
        if isinstance(job, dict) and out.shows_result:
            out.item(job, job_text.DETAIL)
    return ExitCode.OK


def validate(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        job_id = _id_for_call(api, args)
        job = api.post(f"/api/jobs/{segment(job_id)}/validate")
        out.say(_("%(job_id)s is asked to validate and trains on.", job_id=job_id))
        if isinstance(job, dict) and out.shows_result:
            out.item(job, job_text.DETAIL)
    return ExitCode.OK


def retry(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        old = _id_for_call(api, args)
        body: dict[str, Any] = (
            {"resume_from": lookup.checkpoint(api, args.resume_from)} if args.resume_from else {}
        )
        if "max_cost" in args:
            body["max_cost_micros"] = args.max_cost
        job = api.post_once(f"/api/jobs/{segment(old)}/retry", body or None, new_key())
        job = {**job, "id": job.get("id") or job.get("job_id")}
        out.say(_("%(old)s is retried as %(id)s", old=old, id=job["id"]))
        if not args.resume_from and not getattr(args, "curl", False):
            _tell_what_is_stored(api, old, out)
        out.item(job, job_text.DETAIL)
    return ExitCode.OK


def _tell_what_is_stored(api: Api, job_id: str, out: Output) -> None:
    """Says from which step the retried job could have resumed, in case the user did not know."""
    try:
        step = lookup.job(api, job_id).get("checkpoint_step")
    except CliError:  # the job is retried, which is to be told whatever happens now
        return
    if step is not None:
        out.say(
            _(
                "It starts from the beginning. To resume from step %(step)s:  simpletuner jobs retry "
                "%(id)s --resume-from %(id)s",
                step=step,
                id=job_id,
            )
        )


def set_priority(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        job_id = _id_for_call(api, args)
        job = api.post(f"/api/queue/{segment(job_id)}/priority", {"priority": args.priority})
        out.say(_("priority of %(job_id)s is now %(priority)s", job_id=job_id, priority=args.priority))
        if isinstance(job, dict) and out.shows_result:
            out.item(job, job_text.DETAIL)
    return ExitCode.OK


def _direct(api: Api, args: argparse.Namespace, name: str) -> Job:
    """Returns the job; the start of an id is enough, except with `--curl`, which prints the call as given."""
    if getattr(args, "curl", False):
        return dict(api.get(f"/api/jobs/{segment(name)}"))
    return lookup.job(api, name)


def _id_for_call(api: Api, args: argparse.Namespace) -> str:
    return str(args.job) if getattr(args, "curl", False) else lookup.job_id(api, args.job)


def _exit_of(job: Job) -> int:
    return ExitCode.OK if job["status"] == "completed" else ExitCode.JOB_FAILED
