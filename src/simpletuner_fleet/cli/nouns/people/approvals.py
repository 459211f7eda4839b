"""Runs the `simpletuner approvals` commands: decides on jobs that need approval, and changes the rules."""

import argparse
from typing import Any

from simpletuner_fleet.cli.frame.errors import ExitCode, fail, not_together
from simpletuner_fleet.cli.frame.output import Column, Output, field
from simpletuner_fleet.cli.frame.quantities import ago
from simpletuner_fleet.cli.remote import lookup
from simpletuner_fleet.cli.remote.api import connected
from simpletuner_fleet.cli.remote.lookup import segment
from simpletuner_fleet.cli.remote.unreadable import say_unreadable
from simpletuner_fleet.languages import _

APPROVALS = "/api/approvals"
RULES = f"{APPROVALS}/rules"
OPTIONS = {"config": "config_glob", "cost_over_micros": "cost_over"}
"""Where the option has another name than the field."""
CONDITIONS = ("gpus_over", "hours_over", "cost_over_micros", "gpu", "first_job", "config", "trainer", "team")


def _votes(approval: dict[str, Any]) -> str:
    said = (f"{vote['name']}: {vote['note']}" if vote["note"] else vote["name"] for vote in approval["votes"])
    return "; ".join(said)


def _named(rule: dict[str, Any]) -> list[str]:
    # 0 is a condition, and equal to False.
    return [
        f"{name}={rule[name]}"
        for name in CONDITIONS
        if rule.get(name) not in (None, "") and rule[name] is not False
    ]


def _conditions(rule: dict[str, Any]) -> str:
    return ", ".join(_named(rule)) or _("every job")


LIST = (
    *(field("job_id", "JOB"), field("job_name", "NAME"), field("owner_name", "OWNER"), field("gpus")),
    Column("WAITS FOR", lambda approval: ", ".join(approval["missing"]), shrinks=True),
    Column("ASKED", lambda approval: ago(approval.get("asked_at")), goes=1),
    Column("YOURS", lambda approval: approval["yours_to_decide"]),
)
DETAIL = (
    *(field("job_id", "JOB"), field("job_name", "NAME"), field("owner_name", "OWNER"), field("state")),
    Column("WAITS FOR", lambda approval: ", ".join(approval["missing"])),
    Column("APPROVED BY", _votes),
    *(field("decided_by", "DECIDED BY"), field("note"), field("expires_at", "EXPIRES")),
)
RULE = (
    *(field("id"), field("name"), Column("WHERE", _conditions)),
    *(field("by"), field("count"), field("expires_s", "EXPIRES AFTER (S)")),
)


def list_(args: argparse.Namespace) -> int:
    with connected(args) as api:
        Output(args).items("approvals", api.items(APPROVALS, "approvals"), LIST)
    return ExitCode.OK


def get(args: argparse.Namespace) -> int:
    with connected(args) as api:
        job_id = lookup.job(api, args.job)["id"]
        Output(args).item(api.get(f"{APPROVALS}/{segment(job_id)}"), DETAIL, id_field="job_id")
    return ExitCode.OK


def approve(args: argparse.Namespace) -> int:
    return _decide(args, "approve")


def reject(args: argparse.Namespace) -> int:
    return _decide(args, "reject")


def _decide(args: argparse.Namespace, verb: str) -> int:
    with connected(args) as api:
        job_id = lookup.job(api, args.job)["id"]
        answer = api.post(f"{APPROVALS}/{segment(job_id)}/{verb}", {"note": args.note})
        Output(args).item(answer, DETAIL, id_field="job_id")
    return ExitCode.OK


def rules(args: argparse.Namespace) -> int:
    with connected(args) as api:
        out, answer = Output(args), api.page(RULES, "rules")
        out.items("rules", answer["rules"], RULE)
        say_unreadable(out, answer, "approvals delete-rule")
    return ExitCode.OK


def add_rule(args: argparse.Namespace) -> int:
    with connected(args) as api:
        _show(Output(args), api.post(RULES, _asked(args)))
    return ExitCode.OK


def change_rule(args: argparse.Namespace) -> int:
    """Changes a rule; whatever the command does not name stays as it is."""
    asked = _asked(args)
    if both := [name for name in args.without if name in asked]:
        flag = f"--{OPTIONS.get(both[0], both[0]).replace('_', '-')}"
        raise not_together(
            f"--without {both[0]}", flag, f"simpletuner approvals change-rule {args.rule} {flag} …"
        )
    with connected(args) as api:
        listed = api.items(RULES, "rules", lookup=True)
        known = next((one for one in listed if one["id"] == args.rule), None)
        if known is None:
            raise fail(
                _("there is no rule %(id)s", id=args.rule),
                _("it may have been deleted"),
                "simpletuner approvals rules",
                "E_NO_SUCH_RULE",
                ExitCode.NOT_FOUND,
            )
        if asked.get("by", "people") != "people":
            known["people"] = []
        kept = {name: value for name, value in known.items() if name != "id" and name not in args.without}
        _show(Output(args), api.put(f"{RULES}/{segment(args.rule)}", {**kept, **asked}))
    return ExitCode.OK


def _show(out: Output, rule: dict[str, Any]) -> None:
    out.item(rule, RULE)
    if not _named(rule):
        out.say(
            _(
                "the rule has no condition: every job that is submitted from now on needs an approval, but for jobs of "
                "those who may approve every job"
            )
            if rule["exempts_approvers"]
            else _("the rule has no condition: every job that is submitted from now on needs an approval")
        )


def _asked(args: argparse.Namespace) -> dict[str, Any]:
    asked = {
        **{name: getattr(args, OPTIONS.get(name, name)) for name in ("name", *CONDITIONS, "by", "count")},
        "people": args.person,
        "expires_s": args.expires,
        "first_job": args.first_job or None,
        "exempts_approvers": False if args.for_approvers_too else None,
    }
    return {name: value for name, value in asked.items() if value not in (None, "", [])}


def delete_rule(args: argparse.Namespace) -> int:
    with connected(args) as api:
        api.delete(f"{RULES}/{segment(args.rule)}")
        Output(args).say(_("the rule %(id)s is deleted", id=args.rule))
    return ExitCode.OK
