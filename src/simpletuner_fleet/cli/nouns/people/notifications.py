"""Runs the `simpletuner notifications` and `simpletuner webhooks` commands."""

import argparse
import sys
from typing import Any

from simpletuner_fleet.cli.frame.errors import ExitCode, fail, usage
from simpletuner_fleet.cli.frame.output import Column, Output, field
from simpletuner_fleet.cli.frame.quantities import ago
from simpletuner_fleet.cli.remote.api import Api, connected
from simpletuner_fleet.cli.remote.lookup import meant, segment
from simpletuner_fleet.languages import _, current

PATH = "/api/notifications"
DEFAULT_EVENTS = ["job.failed", "job.completed"]
WEBHOOK = "webhook"
LIST = (
    field("id"),
    field("name"),
    field("channel"),
    field("status"),
    Column("EVENTS", lambda one: ",".join(one.get("events", []))),
    Column("DELIVERED", lambda one: ago(one.get("delivered_at"))),
    field("address"),
)
FACTS = (
    *LIST,
    field("owner_name", "OWNER"),
    field("scope"),
    field("quiet"),
    field("digest"),
    field("zone"),
    field("secrets"),
    field("cursor"),
    field("error"),
)
HISTORY = (
    Column("AT", lambda one: ago(one.get("at"))),
    field("event"),
    Column("RESULT", lambda one: _("delivered") if one.get("ok") else _("failed")),
    field("detail"),
    field("took_s", "TOOK", right=True),
    field("message_id", "MESSAGE"),
)


def _meaning(event: dict[str, Any]) -> str:
    title = str(event.get("title") or "")
    return current().gettext(title) if title else ""


EVENTS = (field("event"), Column("MEANING", _meaning))


def list_(args: argparse.Namespace) -> int:
    return _list(args, None)


def list_webhooks(args: argparse.Namespace) -> int:
    return _list(args, WEBHOOK)


def _list(args: argparse.Namespace, channel: str | None) -> int:
    out = Output(args)
    with connected(args) as api:
        rows = [one for one in api.items(PATH, "endpoints") if channel in (None, one.get("channel"))]
        if not rows and not out.for_programs:
            out.hint(
                _("None yet. Add one:  simpletuner notifications add --channel slack --event job.failed")
            )
        out.items("endpoints", rows, LIST, id_field="id")
    return ExitCode.OK


def events(args: argparse.Namespace) -> int:
    with connected(args) as api:
        Output(args).items("events", api.items(f"{PATH}/events", "events"), EVENTS, id_field="event")
    return ExitCode.OK


def add(args: argparse.Namespace) -> int:
    return _add(args, args.channel)


def add_webhook(args: argparse.Namespace) -> int:
    return _add(args, WEBHOOK)


def _add(args: argparse.Namespace, channel: str) -> int:
    out = Output(args)
    usual = ["audit"] if channel == "syslog" else DEFAULT_EVENTS
    body = {
        "name": args.name or channel,
        "channel": channel,
        "address": _address(args),
        "events": args.event or usual,
        **_rules(args),
    }
    with connected(args) as api:
        made = api.post(PATH, body) or {}
        endpoint = made.get("endpoint", {})
        if out.shows_result:
            out.item({**endpoint, "secret": made.get("secret", "")}, LIST, id_field="id")
        else:
            out.say(_("added %(name)s as %(id)s", name=body["name"], id=endpoint.get("id")))
        _tell_secret(out, made)
        out.hint(_("See whether it arrives:  simpletuner notifications test %(id)s", id=endpoint.get("id")))
    return ExitCode.OK


def change(args: argparse.Namespace) -> int:
    out = Output(args)
    body = _rules(args)
    if args.event:
        body["events"] = args.event
    if args.name:
        body["name"] = args.name
    if args.address:
        body["address"] = args.address
    if not body:
        raise usage(
            _("there is nothing to change"),
            _("no option was given"),
            "--event job.failed --quiet-hours 22:00-07:00",
        )
    with connected(args) as api:
        changed = api.patch(_path(api, args.id), body) or {}
        out.say(_("changed %(name)s", name=changed.get("name")))
        if out.shows_result:
            out.item(changed, FACTS, id_field="id")
    return ExitCode.OK


def show(args: argparse.Namespace) -> int:
    with connected(args) as api:
        Output(args).item(api.get(_path(api, args.id)) or {}, FACTS, id_field="id")
    return ExitCode.OK


def delete(args: argparse.Namespace) -> int:
    with connected(args) as api:
        api.delete(_path(api, args.id))
        Output(args).say(_("deleted %(name)s", name=args.id))
    return ExitCode.OK


def test(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        path = _path(api, args.id)
        answer = api.post(f"{path}/test") or {}
    if out.shows_result:
        out.item(answer, (field("state"), field("detail")), id_field="state")
    elif answer.get("state") == "sending":
        out.say(_("the receiver is slow; 'simpletuner notifications history' will show what came of it"))
    elif answer.get("state") == "delivered":
        out.say(_("the test message has arrived: %(detail)s", detail=answer.get("detail")))
    if answer.get("state") == "failed":
        raise fail(
            _("the test message did not arrive"),
            str(answer.get("detail")),
            _("verify the address, and what the receiver says"),
            "E_NOT_DELIVERED",
            ExitCode.FAILED,
        )
    return ExitCode.OK


def pause(args: argparse.Namespace) -> int:
    return _act(args, "pause", None)


def resume(args: argparse.Namespace) -> int:
    return _act(args, "resume", None)


def replay(args: argparse.Namespace) -> int:
    if (args.seq is None) == (args.since is None):
        raise usage(
            _("say from where to send again"),
            _("either a moment or an audit entry"),
            "--since 2026-01-31T12:00:00Z",
        )
    return _act(args, "replay", {"seq": args.seq} if args.seq is not None else {"since": args.since})


def rotate(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        made = api.post(f"{_path(api, args.id)}/secret", {"overlap_s": args.overlap}) or {}
        if out.shows_result:
            out.item({**made.get("endpoint", {}), "secret": made.get("secret", "")}, LIST, id_field="id")
        _tell_secret(out, made)
    return ExitCode.OK


def history(args: argparse.Namespace) -> int:
    with connected(args) as api:
        rows = api.items(f"{_path(api, args.id)}/history", "deliveries")
        Output(args).items("deliveries", rows, HISTORY, id_field="message_id")
    return ExitCode.OK


def _act(args: argparse.Namespace, verb: str, body: dict[str, Any] | None) -> int:
    with connected(args) as api:
        path = f"{_path(api, args.id)}/{verb}"
        changed = (api.post(path, body) if body is not None else api.post(path)) or {}
        Output(args).item(changed, FACTS, id_field="id")
    return ExitCode.OK


def _path(api: Api, word: str) -> str:
    """Returns the path of an endpoint, given by its id or else by a name that only one endpoint has."""
    named = [one["id"] for one in meant(api.items(PATH, "endpoints", lookup=True), word)]
    if len(named) > 1:
        raise usage(
            _("several endpoints are called %(name)s", name=word),
            _("a name need not be unique"),
            " | ".join(named),
        )
    return f"{PATH}/{segment(named[0] if named else word)}"


def _rules(args: argparse.Namespace) -> dict[str, Any]:
    hours = getattr(args, "quiet_hours", None)
    given = {
        "scope": "all" if args.all else None,
        "quiet": "" if hours == "none" else hours,
        "digest": getattr(args, "digest", None),
        "digest_at": getattr(args, "digest_at", None),
        "zone": getattr(args, "zone", None),
        "language": getattr(args, "language", None),
    }
    return {name: value for name, value in given.items() if value is not None}


def _address(args: argparse.Namespace) -> str:
    """Returns the address. A chat's URL is a secret, which nobody else on the machine sees on standard input."""
    if getattr(args, "curl", False) and not args.address:
        return "ADDRESS"  # what is printed may be kept by the terminal
    address: str = args.address or ("" if sys.stdin.isatty() else sys.stdin.readline().strip())
    if not address:
        raise usage(_("there is no address"), _("a URL or an e-mail address is needed"), "--address URL")
    return address


def _tell_secret(out: Output, made: dict[str, Any]) -> None:
    """Says the secret unless it is part of what was printed."""
    if made.get("secret") and (out.leaves_out("secret") or not (out.fields or out.for_programs)):
        out.say_once(_("signing secret, shown this once: %(secret)s", secret=made["secret"]))
