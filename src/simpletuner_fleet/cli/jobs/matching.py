"""`simpletuner jobs act`: one act on all jobs that match."""

import argparse
from typing import Any

from simpletuner_fleet.cli.frame.command_name import as_called
from simpletuner_fleet.cli.frame.errors import ExitCode, fail
from simpletuner_fleet.cli.frame.output import Output
from simpletuner_fleet.cli.jobs.verbs import searched
from simpletuner_fleet.cli.remote.api import Api, connected
from simpletuner_fleet.languages import _, ngettext


def act(args: argparse.Namespace) -> int:
    out = Output(args)
    search = searched(args)
    with connected(args) as api:
        if args.expected is None:
            return _tell_count(api, args, search, out)
        body = {"search": search, "expected": args.expected, **_wished(args)}
        done, refused, cursor = 0, [], None
        while True:
            answer = api.post(f"/api/matching/{args.act}", {**body, "cursor": cursor})
            done += answer["done"]
            refused += answer["refusals"]
            cursor = answer["next"]
            if not cursor:
                break
        for one in refused:
            out.say(_("%(id)s was refused: %(why)s", id=one["id"], why=one["detail"]))
        out.say(ngettext("done: %(n)s job", "done: %(n)s jobs", done))
        if out.for_programs:
            out.json({"done": done, "refusals": refused})
    return ExitCode.FAILED if refused else ExitCode.OK


def _tell_count(api: Api, args: argparse.Namespace, search: dict[str, Any], out: Output) -> int:
    count = api.post("/api/matching/count", {"search": search, "act": args.act})["count"]
    out.say(
        ngettext("%(n)s job matches; nothing was changed", "%(n)s jobs match; nothing was changed", count)
    )
    out.hint(_("To do it, repeat the command with --yes %(n)s", n=count))
    if out.for_programs:
        out.json({"count": count})
    return ExitCode.OK


def _wished(args: argparse.Namespace) -> dict[str, Any]:
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
