"""Runs the `simpletuner sign-in` commands: administers the OpenID providers that people log in with."""

import argparse
from typing import Any

from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.cli.frame.output import Column, Output, field
from simpletuner_fleet.cli.nouns.people.secrets import typed_secret
from simpletuner_fleet.cli.remote.api import Api, connected
from simpletuner_fleet.cli.remote.lookup import segment
from simpletuner_fleet.languages import _, current
from simpletuner_fleet.languages.details import detail_text
from simpletuner_fleet.languages.names import TRIAL_STATES

PROVIDERS = "/api/admin/sign-in/providers"
FIELDS = {"scopes": "scope", "hosts": "allow_host"}
"""Where the option has another name than the field."""
PLAIN = (
    *("title", "issuer", "client_id", "scopes", "groups_claim", "name_claim", "subject_claim"),
    *("leeway_s", "hosts"),
)
BUILT_IN = ("admin", "member", "viewer")


def _tested(provider: dict[str, Any]) -> str:
    trial = provider.get("trial")
    return _result(trial) if trial else _("not tested")


def _result(tried: dict[str, Any]) -> str:
    name = TRIAL_STATES[tried["state"]]
    return current().gettext(name)


def _said(check: dict[str, Any]) -> str:
    return detail_text(current(), check["said"])


def _next(check: dict[str, Any]) -> str:
    return detail_text(current(), check["next"])


LIST = (
    *(field("id"), field("title"), field("source"), field("enabled")),
    Column("TESTED", _tested),
    *(field("sessions", right=True), field("issuer")),
)
DETAIL = (
    *LIST,
    *(field("problem"), field("client_id", "CLIENT"), field("has_secret", "SECRET")),
    Column("SCOPES", lambda one: " ".join(one["scopes"])),
    *(field("groups_claim", "GROUPS CLAIM"), field("subject_claim", "SUBJECT CLAIM")),
    *(field("redirect_uri", "REDIRECT ADDRESS"), field("backchannel_uri", "BACK-CHANNEL LOG-OUT")),
)
CHECK = (
    field("name", "CHECK"),
    Column("RESULT", _result),
    Column("WHAT CAME OF IT", _said, shrinks=True),
    Column("NEXT", _next, shrinks=True),
)


def list_(args: argparse.Namespace) -> int:
    with connected(args) as api:
        Output(args).items("providers", api.items(PROVIDERS, "providers"), LIST)
    return ExitCode.OK


def get(args: argparse.Namespace) -> int:
    with connected(args) as api:
        Output(args).item(api.get(_at(args)), DETAIL)
    return ExitCode.OK


def add(args: argparse.Namespace) -> int:
    body = {"id": args.provider, **_asked(args), "enabled": args.enable}
    body.setdefault("roles", {})
    if not args.public:
        body["client_secret"] = _secret(args)
    with connected(args) as api:
        made = api.post(PROVIDERS, body)
        out = Output(args)
        out.item(made, DETAIL)
        out.hint(_("Register this redirect address there:  %(address)s", address=made["redirect_uri"]))
        if not args.enable:
            out.hint(
                _(
                    "Test it, then switch it on:  simpletuner sign-in test %(id)s && simpletuner sign-in enable %(id)s",
                    id=args.provider,
                )
            )
    return ExitCode.OK


def change(args: argparse.Namespace) -> int:
    body = _asked(args)
    if args.public:
        body["client_secret"] = ""
    elif args.from_file:
        body["client_secret"] = _secret(args)
    with connected(args) as api:
        Output(args).item(api.patch(_at(args), body), DETAIL)
    return ExitCode.OK


def enable(args: argparse.Namespace) -> int:
    return _switch(args, enabled=True)


def disable(args: argparse.Namespace) -> int:
    return _switch(args, enabled=False)


def _switch(args: argparse.Namespace, *, enabled: bool) -> int:
    with connected(args) as api:
        Output(args).item(api.patch(_at(args), {"enabled": enabled}), LIST)
    return ExitCode.OK


def test(args: argparse.Namespace) -> int:
    """Tries a provider. Fails if something is wrong; a check that could not be made is only reported."""
    with connected(args) as api:
        trial = _trial(api, args)
        out = Output(args)
        if out.for_programs:
            out.item(trial, ())
        else:
            out.items("checks", trial["checks"], CHECK, id_field="name")
    return ExitCode.FAILED if trial["state"] == "bad" else ExitCode.OK


def _trial(api: Api, args: argparse.Namespace) -> dict[str, Any]:
    trial: dict[str, Any] = api.post(f"{_at(args)}/test")
    return trial


def delete(args: argparse.Namespace) -> int:
    with connected(args) as api:
        api.delete(_at(args))
        Output(args).say(_("the provider %(id)s is deleted, and its sessions have ended", id=args.provider))
    return ExitCode.OK


def _at(args: argparse.Namespace) -> str:
    return f"{PROVIDERS}/{segment(args.provider)}"


def _secret(args: argparse.Namespace) -> str:
    return typed_secret(
        args, _("Client secret of %(name)s: ", name=args.provider), f"simpletuner sign-in add {args.provider}"
    )


def _asked(args: argparse.Namespace) -> dict[str, Any]:
    named = {name: getattr(args, FIELDS.get(name, name)) for name in PLAIN}
    body = {name: value for name, value in named.items() if value not in (None, [])}
    if args.role or args.everybody:
        body["roles"] = _roles(args.role, args.everybody)
    if args.team:
        body["teams"] = _teams(args.team)
    if args.new_users is not None:
        body["new_users"] = args.new_users
    return body


def _roles(rules: list[tuple[str, str]], everybody: str | None) -> dict[str, Any]:
    roles: dict[str, Any] = {"everybody": everybody} if everybody else {}
    for role, group in rules:
        held = roles if role in BUILT_IN else roles.setdefault("own", {})
        held.setdefault(role, []).append(group)
    return roles


def _teams(rules: list[tuple[str, str]]) -> dict[str, dict[str, list[str]]]:
    teams: dict[str, dict[str, list[str]]] = {}
    for place, group in rules:
        team, _between, role = place.rpartition(":")
        teams.setdefault(team, {}).setdefault(role, []).append(group)
    return teams
