"""Runs the `simpletuner prices` commands: shows and sets what an hour of a GPU costs."""

import argparse
from typing import Any

from simpletuner_fleet.cli.frame.amounts import known_money, money
from simpletuner_fleet.cli.frame.errors import ExitCode, usage
from simpletuner_fleet.cli.frame.output import Column, Output, field
from simpletuner_fleet.cli.remote import lookup
from simpletuner_fleet.cli.remote.api import Api, connected
from simpletuner_fleet.cli.remote.lookup import segment
from simpletuner_fleet.cli.remote.unreadable import say_unreadable
from simpletuner_fleet.languages import _
from simpletuner_fleet.settings import values

PRICES = "/api/prices"
NO_PRICE = "none"


def list_(args: argparse.Namespace) -> int:
    with connected(args) as api:
        answer = api.page(PRICES, "rules")
        out = Output(args)
        out.items("prices", answer["rules"], _columns(str(answer["currency"])))
        say_unreadable(out, answer, "prices delete")
    return ExitCode.OK


def add(args: argparse.Namespace) -> int:
    label, _equals, value = (args.label or "").partition("=")
    if args.label and not (label and value):
        raise usage(
            _("%(flag)s cannot be used this way", flag="--label"),
            _("expected KEY=GLOB, got '%(given)s'", given=args.label),
            "simpletuner prices add 2.50 --label provider='cloud-*'",
        )
    asked = {"price_micros": args.price, "gpu": args.gpu, "label": label, "value": value}
    body = {name: given for name, given in asked.items() if given not in (None, "")}
    if args.type:
        body["worker_type"] = args.type
    with connected(args) as api:
        currency = _currency(args, api)  # first: a price that was added must not be added again
        Output(args).item(api.post(PRICES, body), _columns(currency))
    return ExitCode.OK


def delete(args: argparse.Namespace) -> int:
    with connected(args) as api:
        api.delete(f"{PRICES}/{segment(args.id)}")
        Output(args).say(_("the price %(id)s is deleted", id=args.id))
    return ExitCode.OK


def worker(args: argparse.Namespace) -> int:
    try:
        price = None if args.price == NO_PRICE else values.money(args.price)
    except ValueError as error:
        raise usage(
            _("'%(word)s' is not an amount", word=args.price),
            str(error),
            "simpletuner prices worker gpu-box 2.50",
        ) from None
    with connected(args) as api:
        path = f"/api/admin/workers/{segment(lookup.worker_id(api, args.worker))}"
        answer = api.patch(path, {"price_micros": price})
        currency = _currency(args, api)
        counts = Column("PRICE", lambda one: money(one.get("effective_price_micros"), currency, exact=True))
        Output(args).item(answer, (field("id"), field("name"), counts))
    return ExitCode.OK


def currency(args: argparse.Namespace) -> int:
    with connected(args) as api:
        answer = api.put(f"{PRICES}/currency", {"currency": args.currency})
        Output(args).item(answer, (field("currency"),), id_field="currency")
    return ExitCode.OK


def idle(args: argparse.Namespace) -> int:
    with connected(args) as api:
        answer = dict(api.get(f"{PRICES}/idle"))
        Output(args).item(answer, _idle(str(answer["currency"])), id_field="currency")
    return ExitCode.OK


def _currency(args: argparse.Namespace, api: Api) -> str:
    return "" if getattr(args, "curl", False) else str(api.get(PRICES, lookup=True)["currency"])


def _columns(currency: str) -> tuple[Column, ...]:
    return (
        field("id"),
        Column("A GPU-HOUR", lambda rule: money(rule["price_micros"], currency, exact=True), right=True),
        Column("GPU", lambda rule: rule.get("gpu") or None),
        Column("LABEL", _label),
        field("worker_type", "TYPE"),
    )


def _label(rule: dict[str, Any]) -> str | None:
    return f"{rule['label']}={rule['value']}" if rule.get("label") else None


def _idle(currency: str) -> tuple[Column, ...]:
    return (
        field("now.gpus", "GPUS"),
        field("now.idle_gpus", "IDLE"),
        Column("IDLE COSTS AN HOUR", lambda one: _as_known(one["now"], "idle_hourly_micros", currency)),
        Column("BUSY COSTS AN HOUR", lambda one: _as_known(one["now"], "busy_hourly_micros", currency)),
        field("now.unpriced_gpus", "WITHOUT A PRICE"),
    )


def _as_known(now: dict[str, Any], name: str, currency: str) -> str | None:
    """Formats a cost: None if no GPU has a price, "at least" if some have none; without a price is not free."""
    if now["gpus"] and now["unpriced_gpus"] >= now["gpus"]:
        return None
    return known_money(now[name], currency, at_least=bool(now["unpriced_gpus"]))
