"""Runs the `simpletuner quotas` commands: shows and sets how much people may use."""

import argparse
from typing import Any

from simpletuner_fleet.cli.frame.amounts import known_money, money
from simpletuner_fleet.cli.frame.errors import ExitCode, usage
from simpletuner_fleet.cli.frame.output import Column, Output, field
from simpletuner_fleet.cli.remote.api import connected
from simpletuner_fleet.cli.remote.lookup import segment
from simpletuner_fleet.cli.remote.unreadable import say_unreadable
from simpletuner_fleet.languages import _
from simpletuner_fleet.settings import values

QUOTAS = "/api/quotas"
LIST = (
    field("id"),
    field("kind"),
    field("whose"),
    Column("CEILING", lambda quota: _amount(quota, "ceiling")),
    field("action"),
    field("warn_at", "WARN AT"),
)
MINE = (
    *(field("id"), field("kind"), field("whose")),
    *(
        Column("USED", lambda quota: _used(quota)),
        Column("LEFT", lambda quota: _amount(quota, "left")),
        Column("CEILING", lambda quota: _amount(quota, "ceiling")),
    ),
    *(field("action"), field("frees_at", "FREES")),
)


def _amount(quota: dict[str, Any], name: str) -> Any:
    unit = quota.get("unit")
    return money(quota[name], str(unit)) if unit else quota[name]


def _used(quota: dict[str, Any]) -> Any:
    unit = quota.get("unit")
    return (
        known_money(quota["used"], str(unit), at_least=bool(quota.get("at_least"))) if unit else quota["used"]
    )


def mine(args: argparse.Namespace) -> int:
    with connected(args) as api:
        _show(args, api.page(f"{QUOTAS}/me", "quotas"), MINE)
    return ExitCode.OK


def list_(args: argparse.Namespace) -> int:
    with connected(args) as api:
        _show(args, api.page(QUOTAS, "quotas"), LIST)
    return ExitCode.OK


def _show(args: argparse.Namespace, answer: dict[str, Any], columns: tuple[Column, ...]) -> None:
    out = Output(args)
    out.items("quotas", answer["quotas"], columns)
    say_unreadable(out, answer, "quotas delete")


def create(args: argparse.Namespace) -> int:
    named = {"person": args.user, "team": args.team, "role": args.role}
    scope, subject = next(
        ((scope, one) for scope, one in named.items() if one), ("each" if args.each else "all", "")
    )
    ceiling = _ceiling(args.kind, args.ceiling)
    body = {"kind": args.kind, "scope": scope, "subject": subject, "ceiling": ceiling, **_more(args)}
    with connected(args) as api:
        Output(args).item(api.post(QUOTAS, body), LIST)
    return ExitCode.OK


def set_(args: argparse.Namespace) -> int:
    with connected(args) as api:
        kinds = {one["id"]: one["kind"] for one in api.items(QUOTAS, "quotas", lookup=True)}
        body = {"ceiling": _ceiling(str(kinds.get(args.id, "")), args.ceiling), **_more(args)}
        Output(args).item(api.patch(f"{QUOTAS}/{segment(args.id)}", body), LIST)
    return ExitCode.OK


def delete(args: argparse.Namespace) -> int:
    with connected(args) as api:
        api.delete(f"{QUOTAS}/{segment(args.id)}")
        Output(args).say(_("the quota %(id)s is taken away", id=args.id))
    return ExitCode.OK


def budgets(args: argparse.Namespace) -> int:
    with connected(args) as api:
        answer = api.page("/api/budgets", "budgets")
        Output(args).items("budgets", answer["budgets"], _budget(str(answer["currency"])), id_field="quota")
    return ExitCode.OK


def _budget(currency: str) -> tuple[Column, ...]:
    def spent(budget: dict[str, Any]) -> str | None:
        return known_money(budget["spent_micros"], currency, at_least=budget["at_least"])

    return (
        *(field("quota"), field("kind"), Column("WHOSE", lambda one: one["account"] or one["whose"])),
        Column("SPENT", spent, right=True),
        Column("OF", lambda one: money(one["ceiling_micros"], currency), right=True),
        Column("FORECAST", lambda one: money(one["forecast_micros"], currency), right=True),
        Column("ROUGH", lambda one: one["forecast_is_rough"]),
        *(field("reached_at", "REACHED", goes=1), field("action")),
    )


def _ceiling(kind: str, text: str) -> int | float:
    try:
        return values.money(text) if kind.startswith("money") else values.number(text)
    except ValueError:
        raise usage(
            _("'%(word)s' is not a ceiling", word=text),
            _("expected a number, or of money an amount such as 500.00"),
            "simpletuner quotas create money_month 500.00 --team vision",
        ) from None


def _more(args: argparse.Namespace) -> dict[str, Any]:
    asked = {"action": args.action, "warn_at": args.warn_at}
    return {name: value for name, value in asked.items() if value is not None}
