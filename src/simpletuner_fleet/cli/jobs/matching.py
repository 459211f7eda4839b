"""Runs `simpletuner jobs act`, `purge` and `cancel --all` on all jobs that match, and `delete` on those named."""

import argparse
from datetime import UTC, datetime, timedelta
from typing import Any

from simpletuner_fleet.cli.frame.command_name import as_called
from simpletuner_fleet.cli.frame.errors import CliError, ExitCode, fail, not_together
from simpletuner_fleet.cli.frame.output import Output
from simpletuner_fleet.cli.jobs import verbs
from simpletuner_fleet.cli.jobs.verbs import searched
from simpletuner_fleet.cli.remote import lookup
from simpletuner_fleet.cli.remote.api import Api, connected, will_pass
from simpletuner_fleet.client.files.file_api import segment
from simpletuner_fleet.languages import _, ngettext

COUNTED_ANEW = 3
"""So often jobs may end or go between the count and the act."""
NOT_YOURS = "not_your_job"
"""The code with which a job of somebody else is refused."""


def act(args: argparse.Namespace) -> int:
    out = Output(args)
    _insist_on_own_options(args)
    search = searched(args)
    with connected(args) as api:
        if args.expected is None:
            return _tell_count(api, args, search, out)
        body = {"search": search, "expected": args.expected, **_requested(args)}
        return _say_done(out, *_acted(api, out, args.act, body))


def _insist_on_own_options(args: argparse.Namespace) -> None:
    """Raises for an option of another act, which this one would ignore."""
    for flag, (act, is_given) in {
        "--priority": ("priority", args.priority is not None),
        "--add-tag": ("tags", bool(args.add_tag)),
        "--remove-tag": ("tags", bool(args.remove_tag)),
        "--checkpoint-first": ("cancel", args.checkpoint_first),
    }.items():
        if is_given and act != args.act:
            raise not_together(flag, args.act, f"simpletuner jobs act {act} {flag} …")


def _tell_count(api: Api, args: argparse.Namespace, search: dict[str, Any], out: Output) -> int:
    counted = api.post("/api/matching/count", {"search": search, "act": args.act})
    count, at_least = counted["count"], bool(counted.get("at_least"))
    number = {"n": _("at least %(n)s", n=count)} if at_least else {}
    out.say(
        ngettext(
            "%(n)s job matches; nothing was changed", "%(n)s jobs match; nothing was changed", count, **number
        )
    )
    out.hint(_("To do it, repeat the command with --yes %(n)s", n=count))
    if out.shows_result:
        out.item({"count": count, "at_least": at_least}, ())
    return ExitCode.OK


def _requested(args: argparse.Namespace) -> dict[str, Any]:
    match args.act:
        case "cancel":
            return {"checkpoint_first": args.checkpoint_first}
        case "priority" if args.priority is None:
            raise fail(
                _("no priority was given"),
                _("priority needs to know which one"),
                as_called("simpletuner jobs act priority --priority low"),
                "E_USAGE",
                ExitCode.USAGE,
            )
        case "priority":
            return {"priority": args.priority}
        case "tags":
            return {"add": args.add_tag, "remove": args.remove_tag}
        case _:
            return {}


def delete(args: argparse.Namespace) -> int:
    """Deletes each job and reports on it; one that is refused does not keep the others from being deleted."""
    out = Output(args)
    results: list[dict[str, Any]] = []
    cut_off: CliError | None = None
    with connected(args) as api:
        for name in args.jobs:
            try:
                gone = api.delete(f"/api/jobs/{segment(_id(api, args, name))}")
            except CliError as error:
                trouble = error.trouble
                detail = f"{trouble.what}: {trouble.why}"
                results.append({"id": name, "deleted": False, "code": trouble.code, "detail": detail})
                if _concerns_all(error):
                    cut_off = error
                    break
                out.say(_("%(id)s was refused: %(why)s", id=name, why=detail))
                out.say_all(trouble.next)
            else:
                results.append({"id": gone["id"], "deleted": True, "deleted_at": gone["deleted_at"]})
                out.say(_("%(id)s is deleted", id=gone["id"]))
    if out.shows_result:
        out.item({"jobs": results}, ())
    if cut_off:
        raise cut_off
    return ExitCode.OK if all(one["deleted"] for one in results) else ExitCode.FAILED


def _concerns_all(error: CliError) -> bool:
    """Tells whether the other jobs would fare no better: nobody answers, or lets this user in."""
    trouble = error.trouble
    is_shut_out = trouble.exit == ExitCode.AUTH and trouble.code != NOT_YOURS
    return is_shut_out or will_pass(error) or trouble.exit in (ExitCode.TLS, ExitCode.TIMEOUT)


def _id(api: Api, args: argparse.Namespace, name: str) -> str:
    """Returns the job's id, or the name itself for a deleted job: the server answers as it did the first time."""
    if getattr(args, "curl", False):
        return name
    try:
        return lookup.job_id(api, name)
    except CliError as error:
        if error.trouble.exit != ExitCode.NOT_FOUND:
            raise
        return name


def purge(args: argparse.Namespace) -> int:
    # As a moment, not a span: what is counted is what is acted on, however long that takes.
    before = datetime.now(UTC) - timedelta(seconds=args.older_than)
    search: dict[str, Any] = {"ended_until": before.strftime("%Y-%m-%dT%H:%M:%SZ")}
    if args.state:
        search["status"] = args.state
    return _on_all(args, "delete", search, {})


def cancel(args: argparse.Namespace) -> int:
    """Cancels the jobs that are named, or with --all every job that matches."""
    return _cancel_all(args) if args.all else verbs.cancel(args)


def _cancel_all(args: argparse.Namespace) -> int:
    if args.jobs:
        raise fail(
            _("--all and ids of jobs exclude each other"),
            _("--all cancels every job that matches"),
            as_called("simpletuner jobs cancel --all --status queued"),
            "E_USAGE",
            ExitCode.USAGE,
        )
    if args.grace is not None:
        raise not_together("--grace", "--all", "simpletuner jobs cancel ID --grace 10m")
    search = {"status": args.status} if args.status else {}
    return _on_all(args, "cancel", search, {"checkpoint_first": args.checkpoint_first})


def _on_all(args: argparse.Namespace, act: str, search: dict[str, Any], requested: dict[str, Any]) -> int:
    """Reports how many jobs match; with --yes acts on them batch by batch, and says how far it is."""
    out = Output(args)
    done, refused, at_least = 0, list[dict[str, Any]](), False
    with connected(args) as api:
        for left in reversed(range(COUNTED_ANEW)):
            count = api.post("/api/matching/count", {"search": search, "act": act})["count"]
            if args.dry_run or not args.yes or not count:
                return _only_counted(out, args, count)
            try:
                body = {"search": search, "expected": count, **requested}
                done, refused, at_least = _acted(api, out, act, body)
                break
            except CliError as error:
                if error.trouble.code != "count_changed" or not left:
                    raise
    return _say_done(out, done, refused, at_least)


def _say_done(out: Output, done: int, refused: list[dict[str, Any]], at_least: bool) -> int:
    for one in refused:
        out.say(_("%(id)s was refused: %(why)s", id=one["id"], why=one["detail"]))
    out.say(ngettext("done: %(n)s job", "done: %(n)s jobs", done))
    if at_least:
        out.say(_("Look at the list again, and confirm the new number."))
    if out.shows_result:
        out.item({"done": done, "refusals": refused, "at_least": at_least}, ())
    return ExitCode.FAILED if refused else ExitCode.OK


def _only_counted(out: Output, args: argparse.Namespace, count: int) -> int:
    out.say(
        ngettext("%(n)s job matches; nothing was changed", "%(n)s jobs match; nothing was changed", count)
    )
    if count and not args.yes:
        out.hint(_("To do it, repeat the command with --yes"))
    if out.shows_result:
        out.item({"count": count}, ())
    return ExitCode.OK


def _acted(api: Api, out: Output, act: str, body: dict[str, Any]) -> tuple[int, list[dict[str, Any]], bool]:
    """Returns how many it was done to, which were refused, and whether others may match that had no turn."""
    done, refused, cursor = 0, [], None
    while True:
        answer = api.post(f"/api/matching/{act}", {**body, "cursor": cursor})
        done += answer["done"]
        refused += answer["refusals"]
        cursor = answer["next"]
        if not cursor:
            return done, refused, bool(answer.get("at_least"))
        out.hint(_("%(done)s of %(n)s", done=done, n=body["expected"]))
