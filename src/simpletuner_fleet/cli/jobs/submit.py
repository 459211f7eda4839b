"""Runs `simpletuner jobs submit`: makes the request, sends it safely, and shows what follows."""

import argparse
import json
import math
import os
import sys
from typing import Any

import msgspec

from simpletuner_fleet.cli.files import bundles
from simpletuner_fleet.cli.files.config_layouts import looks_like_path
from simpletuner_fleet.cli.frame.errors import CliError, ExitCode, fail, only_with
from simpletuner_fleet.cli.frame.output import Column, Output, field
from simpletuner_fleet.cli.frame.words import label_patterns_of, pairs_of
from simpletuner_fleet.cli.jobs import job_text
from simpletuner_fleet.cli.jobs.job_text import TERMINAL
from simpletuner_fleet.cli.jobs.logs import LogRequest
from simpletuner_fleet.cli.jobs.logs import show as show_log
from simpletuner_fleet.cli.jobs.start_times import asked_start
from simpletuner_fleet.cli.jobs.waiting import Job, wait_for_end
from simpletuner_fleet.cli.remote import lookup
from simpletuner_fleet.cli.remote.api import Api, connected, new_key, will_pass
from simpletuner_fleet.cli.remote.changes import looks
from simpletuner_fleet.cli.remote.datasets import find_dataset
from simpletuner_fleet.core.jobs.states import WAITING, JobState
from simpletuner_fleet.core.money.estimate import Estimate
from simpletuner_fleet.languages import _
from simpletuner_fleet.languages.estimates import estimate_texts
from simpletuner_fleet.settings import values

CLOUD, FROM_A_POOL = "cloud", {"pool": "*"}
"""Machines that pools bring carry the name of their pool as a label."""
RESULT = (
    field("job_id", "ID"),
    field("status"),
    Column("POSITION", lambda answer: answer.get("queue_position")),
    Column("WORKER", lambda answer: answer.get("allocated_worker_id")),
    Column("GPUS", lambda answer: answer.get("allocated_gpus")),
    Column("REASON", job_text.reason),
)

DRY = (Column("STARTS NOW", lambda answer: answer.get("would_start_now")), *RESULT[1:3], RESULT[-1])


def submit(args: argparse.Namespace) -> int:
    out = Output(args)
    if args.publish_secret and not args.publish:
        raise only_with("--publish-secret", "--publish", "simpletuner jobs submit --help")
    request = request_of(args)
    mounts = pairs_of(args.data, "--data")
    key = args.idempotency_key or new_key()
    with connected(args) as api:
        if args.resume_from:
            request["resume_from"] = lookup.checkpoint(api, args.resume_from)
        if mounts:
            request["datasets"] = {mount: find_dataset(api, name) for mount, name in mounts.items()}
        answer = _send(api, args, request, key)
        if args.dry_run:
            return _show_dry_run(answer, out)
        _show_answer(answer, out, brief=args.follow or args.wait)
        if args.follow:
            return _follow(api, answer["job_id"], out)
        if args.wait:
            job = wait_for_end(api, answer["job_id"], None)
            out.item(job, job_text.DETAIL)
            return ExitCode.OK if job["status"] == "completed" else ExitCode.JOB_FAILED
    return ExitCode.OK


def request_of(args: argparse.Namespace) -> dict[str, Any]:
    """Returns only the fields that the user gave: the server knows the defaults."""
    request: dict[str, Any] = {
        "target": "worker" if args.target == CLOUD else args.target,
        "worker_labels": {**(FROM_A_POOL if args.target == CLOUD else {}), **label_patterns_of(args.label)},
        "max_price_micros": args.max_price,
        "gpus": args.gpus,
        "nodes": args.nodes,
        "min_vram_gb": args.min_vram,
        "priority": args.priority,
        "overrides": {
            key: _value(text) for key, text in pairs_of(args.overrides, "--set", split=False).items()
        },
        "max_retries": args.max_retries,
        "retry_on_failure": args.retry_on_failure,
        "time_limit_s": args.time_limit,
        "on_time_limit": args.on_time_limit,
        "max_cost_micros": args.max_cost,
        "on_max_cost": args.on_max_cost,
        "depends_on": values.words(args.depends_on),
        "not_before": asked_start(args),
        "watchdog": {key: _value(text) for key, text in pairs_of(args.watchdog, "--watchdog").items()},
        "publish": {"to": args.publish, "secret": args.publish_secret} if args.publish else None,
        "name": args.name,
        "team": args.team,
        "visibility": args.visibility,
        "no_wait": args.no_wait,
        "any_gpu": args.any_gpu,
        "for_approval": args.for_approval,
        "dry_run": args.dry_run,
    }
    chosen = {key: value for key, value in request.items() if value or (value == 0 and value is not False)}
    if looks_like_path(args.config_ref):
        loaded = bundles.load(args.config_ref)
        Output(args).say_all(loaded.notes)
        return {"config_name": loaded.name, "config": loaded.bundle, **chosen}
    return {"config_name": args.config_ref, **chosen}


def _send(api: Api, args: argparse.Namespace, request: dict[str, Any], key: str) -> dict[str, Any]:
    try:
        return dict(api.post_once("/api/queue/submit", request, key))
    except CliError as error:
        if error.trouble.exit == ExitCode.NOT_FOUND and os.path.exists(args.config_ref):
            raise fail(
                _("there is no saved config '%(config_ref)s'", config_ref=args.config_ref),
                _(
                    "there is a file or folder of that name here: did you mean './%(config_ref)s'?",
                    config_ref=args.config_ref,
                ),
                f"simpletuner jobs submit ./{args.config_ref}",
                error.trouble.code,
                ExitCode.NOT_FOUND,
            ) from None
        raise


def _show_dry_run(answer: dict[str, Any], out: Output) -> int:
    out.item(answer, DRY, id_field="job_id")
    _say_whose(answer, out)
    if answer.get("estimate") and not out.for_programs:
        out.say_all(estimate_texts(msgspec.convert(answer["estimate"], Estimate)))
    out.say(_("Nothing was submitted (--dry-run)."))
    return ExitCode.OK


def _show_answer(answer: dict[str, Any], out: Output, *, brief: bool) -> None:
    if not brief:
        out.item(answer, RESULT, id_field="job_id")
    else:
        out.say(
            _("submitted %(job_id)s: %(status)s", job_id=answer["job_id"], status=answer.get("status", ""))
        )
    if out.for_programs:
        return
    _say_whose(answer, out)
    waits = job_text.explanation(answer)
    if waits.get("class") in ("change", "admin"):
        out.say(_("warning: %(sentence)s", sentence=job_text.reason(answer)))
        for step in job_text.fixes(waits):
            out.say("  " + _("next: %(step)s", step=step))
    elif not brief:
        out.hint(_("Follow it:  simpletuner jobs logs -f %(job_id)s", job_id=answer["job_id"]))


def _say_whose(answer: dict[str, Any], out: Output) -> None:
    """Says which version of the config the job will run and who saved it, which a name alone does not tell."""
    config = answer.get("config")
    if config:
        out.say(
            _(
                "It runs config '%(name)s', version %(version)s, saved by %(by)s.",
                name=config["name"],
                version=config["version"],
                by=config["saved_by"],
            )
        )


def _follow(api: Api, job_id: str, out: Output) -> int:
    """Prints states on stderr and the log on stdout, attempt by attempt. Ctrl-C leaves the job running."""
    followed = 0
    last = ""
    try:
        for job in looks(api, lambda: lookup.job(api, job_id)):
            state = " ".join(filter(None, (job["status"], job_text.reason(job))))
            if state != last:
                out.say(f"{job_id}: {state}")
                last = state
            attempt = int(job.get("attempt") or 0)
            if attempt > followed and job["status"] not in (*WAITING, JobState.DISPATCHED):
                show_log(api, job_id, LogRequest(follow=True, attempt=attempt, colours=out.color))
                followed = attempt
                job = _seen_again(api, job)
            if job["status"] in TERMINAL:
                out.say(f"{job_id}: {job['status']}")
                for step in job_text.advice(job):
                    out.say("  " + _("next: %(step)s", step=step))
                return ExitCode.OK if job["status"] == "completed" else ExitCode.JOB_FAILED
    except KeyboardInterrupt:
        print(file=sys.stderr)
        out.say(
            _(
                "The job keeps running; only the view was closed. Cancel it:  simpletuner jobs cancel "
                "%(job_id)s",
                job_id=job_id,
            )
        )
        raise
    return ExitCode.FAILED


def _seen_again(api: Api, job: Job) -> Job:
    """Returns the job as it is now; as it was where the server restarts just then."""
    try:
        return lookup.job(api, str(job["id"]))
    except CliError as error:
        if not will_pass(error):
            raise
        return job


def _value(text: str) -> Any:
    """Parses the text as JSON (3, true, [1,2]); if it is not JSON, the text itself is the value."""
    try:
        return json.loads(text, parse_constant=str, parse_float=_finite)
    except (ValueError, RecursionError):
        return text


def _finite(word: str) -> float | str:
    number = float(word)
    return number if math.isfinite(number) else word
