"""Runs the `simpletuner pools` and `simpletuner machines` commands, and `simpletuner offers`."""

import argparse
from collections.abc import Callable
from typing import Any

from simpletuner_fleet.cli.frame.amounts import money
from simpletuner_fleet.cli.frame.errors import CliError, ExitCode, usage
from simpletuner_fleet.cli.frame.output import Column, Output, field
from simpletuner_fleet.cli.frame.quantities import ago
from simpletuner_fleet.cli.remote.api import Api, connected
from simpletuner_fleet.cli.remote.lookup import segment
from simpletuner_fleet.languages import _, current, ngettext
from simpletuner_fleet.languages.details import detail_text
from simpletuner_fleet.settings import values

POOLS, MACHINES = "/api/pools", "/api/machines"
GIVEN = (
    *("provider", "secret", "min_machines", "max_machines"),
    *("market", "spot_tries", "over_budget", "orchestrator_url"),
)
LIMITS = ("max_price_micros", "max_hourly_micros", "max_daily_micros", "max_monthly_micros")
LISTS = {"kind": "kinds", "region": "regions", "trainer": "trainers"}
AUDIENCE = {"team": "teams", "person": "people"}


def _money(name: str) -> Callable[[Any], str | None]:
    return lambda row: money(row.get(name), row.get("currency", ""))


def _limit(name: str) -> Callable[[Any], str | None]:
    return lambda row: money(row["request"].get(name), row.get("currency", ""))


def _machines_of(pool: Any) -> str:
    return f"{pool.get('machines')}/{pool['request'].get('max_machines')}"


def _does_nothing(machine: Any) -> str | None:
    """Says why a machine is useless and since when; None where it is of use."""
    use = machine.get("useless")
    return f"{use}, {ago(machine.get('useless_since'))}" if use else None


def _said(name: str) -> Callable[[dict[str, Any]], str | None]:
    """Returns a column for what a provider said: our own sentences are translated, its words stay as they are."""
    return lambda item: detail_text(current(), item[name]) if item.get(name) else None


LIST = (
    field("name"),
    field("request.provider", "PROVIDER"),
    Column("MACHINES", _machines_of, right=True),
    Column("AN HOUR", _money("hourly_micros"), right=True),
    Column("TODAY", _money("today_micros"), right=True),
    Column("THIS MONTH", _money("this_month_micros"), right=True),
    Column("TROUBLE", _said("trouble"), shrinks=True),
)
DETAIL = (
    *LIST,
    Column("MONTH'S FORECAST", _money("month_forecast_micros"), right=True),
    Column("MOST FOR ONE", _limit("max_price_micros")),
    Column("MOST AN HOUR", _limit("max_hourly_micros")),
    Column("MOST A DAY", _limit("max_daily_micros")),
    Column("MOST A MONTH", _limit("max_monthly_micros")),
    field("request.over_budget", "AT THE LIMIT"),
    field("request.market", "MARKET"),
    field("request.spot_tries", "TAKEN AWAY AT MOST"),
    field("request.min_machines", "AT LEAST"),
    field("request.idle_s", "IDLE (S)"),
    field("request.boot_s", "BOOT (S)"),
    field("request.settings", "SETTINGS"),
    field("request.secret", "SECRET"),
    field("request.kinds", "GPUS"),
    field("request.regions", "REGIONS"),
    field("request.labels", "LABELS"),
    field("request.trainers", "TRAINERS"),
    field("teams", "ONLY TEAMS"),
    field("people", "ONLY PEOPLE"),
    field("request.enabled", "ENABLED"),
)
MACHINE_LIST = (
    field("id"),
    field("pool"),
    field("status"),
    field("hardware", shrinks=True),
    Column("AN HOUR", _money("hourly_micros"), right=True),
    Column("COST", _money("cost_micros"), right=True),
    Column("ASKED", lambda machine: ago(machine.get("asked_at")), goes=1),
    field("why"),
    Column("DOES NOTHING", _does_nothing),
)
MACHINE_DETAIL = (
    *MACHINE_LIST,
    field("name"),
    field("provider_id", "PROVIDER'S ID"),
    field("worker_id", "WORKER"),
    Column("PROVIDER SAID", _said("detail")),
    field("boot_log", "BOOT LOG"),
)
CHECK = (
    field("ok", "KEY WORKS"),
    Column("TROUBLE", _said("trouble")),
    field("machines", right=True),
    field("offers", right=True),
    field("eligible", right=True),
    Column("CHEAPEST, AN HOUR", _money("cheapest_micros"), right=True),
)
OFFERS = (
    field("pool"),
    field("id", shrinks=True),
    field("gpu_name", "GPU"),
    field("gpus", right=True),
    field("vram_gb", "VRAM (GB)", right=True),
    Column("AN HOUR", _money("hourly_micros"), right=True),
    field("spot"),
    field("region"),
    Column("DISK (GB)", lambda offer: f"{offer.get('disk_gb') or 0:g}", right=True, goes=2),
    field("cuda", "CUDA", goes=3),
    field("reliability", goes=4),
    field("eligible"),
)


def list_(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        answer = api.page(POOLS, "pools")
        if not answer["pools"] and not out.for_programs:
            out.hint(_("No pools yet. Make one:  simpletuner pools set NAME --provider KIND"))
        out.items("pools", answer["pools"], LIST, id_field="name")
        if answer.get("hands_off"):
            out.hint(
                _(
                    "This database was restored: machines are left alone until you say that no other server looks "
                    "after them:  simpletuner pools take-in-hand"
                )
            )
    return ExitCode.OK


def get(args: argparse.Namespace) -> int:
    with connected(args) as api:
        Output(args).item(api.get(f"{POOLS}/{segment(args.name)}"), DETAIL, id_field="name")
    return ExitCode.OK


def set_(args: argparse.Namespace) -> int:
    """Changes a pool: the server takes it as a whole, so the present one is read first and changed here."""
    out = Output(args)
    if args.everybody and (args.team or args.person):
        raise usage(
            _("%(flag)s cannot be used this way", flag="--everybody"),
            _("it takes away the teams and people that --team and --person name"),
            f"simpletuner pools set {args.name} --everybody",
        )
    with connected(args) as api:
        known = _known(api, args.name)
        if known is None and not args.provider:
            raise usage(
                _("there is no pool %(name)s yet", name=args.name),
                _("a new one needs to know where its machines come from"),
                f"simpletuner pools set {args.name} --provider process",
            )
        saved = api.put(f"{POOLS}/{segment(args.name)}", changed_request(known or {}, args))
        out.say(_("saved the pool %(name)s", name=args.name))
        if out.shows_result:
            out.item(saved, LIST, id_field="name")
    return ExitCode.OK


def _known(api: Api, name: str) -> dict[str, Any] | None:
    rows = api.items(POOLS, "pools", lookup=True)
    return next((row["request"] for row in rows if row["name"] == name), None)


def changed_request(request: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Returns the pool with the given changes; a list that is given replaces the whole list."""
    changed = dict(request)
    changed |= {name: value for name in GIVEN if (value := getattr(args, name)) is not None}
    changed |= {name: getattr(args, name) for name in LIMITS if hasattr(args, name)}
    changed |= {target: list(words) for name, target in LISTS.items() if (words := getattr(args, name))}
    if args.everybody or any(getattr(args, name) for name in AUDIENCE):
        changed |= {target: list(getattr(args, name)) for name, target in AUDIENCE.items()}
    for name, target in (("idle", "idle_s"), ("boot", "boot_s"), ("data_gb", "data_gb")):
        if getattr(args, name) is not None:
            changed[target] = getattr(args, name)
    if args.setting:
        settings = {**changed.get("settings", {}), **_settings(args.setting)}
        changed["settings"] = {key: value for key, value in settings.items() if value}
    if args.label:
        changed["labels"] = _labels(args.label)
    if args.on or args.off:
        changed["enabled"] = bool(args.on)
    return changed


def _settings(words: list[str]) -> dict[str, str]:
    """Reads KEY=VALUE; a value may contain commas and equals signs, which are left to the provider."""
    pairs = [word.partition("=") for word in words]
    for key, equals, _value in pairs:
        if not key or not equals:
            raise _misused("--setting", _("expected KEY=VALUE, got '%(item)s'", item=key))
    return {key: value for key, _equals, value in pairs}


def _labels(words: list[str]) -> dict[str, str]:
    try:
        return values.pairs(words)
    except ValueError as error:
        raise _misused("--label", str(error)) from None


def _misused(flag: str, why: str) -> CliError:
    return usage(
        _("%(flag)s cannot be used this way", flag=flag),
        why,
        _("for example %(example)s", example=f"{flag} key=value"),
    )


def delete(args: argparse.Namespace) -> int:
    with connected(args) as api:
        api.delete(f"{POOLS}/{segment(args.name)}")
        Output(args).say(_("the pool %(name)s goes with its last machine", name=args.name))
    return ExitCode.OK


def take_in_hand(args: argparse.Namespace) -> int:
    with connected(args) as api:
        api.post(f"{POOLS}/take-in-hand")
        Output(args).say(_("machines are looked after again"))
    return ExitCode.OK


def check(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        answer = dict(api.post(f"{POOLS}/{segment(args.name)}/check"))
        out.item(answer, CHECK, id_field="ok")
        return ExitCode.OK if answer.get("ok") else ExitCode.FAILED


def offers(args: argparse.Namespace) -> int:
    """Lists the offers of one pool, or of all pools, the cheapest first."""
    out = Output(args)
    with connected(args) as api:
        chosen = args.pool or args.name
        names = [chosen] if chosen else [row["name"] for row in api.items(POOLS, "pools", lookup=True)]
        offered = [row for name in names for row in api.items(f"{POOLS}/{segment(name)}/offers", "offers")]
        rows = sorted(offered, key=lambda row: (row["hourly_micros"], row["pool"], row["id"]))
        if not rows and not out.for_programs:
            out.hint(_("The provider offers nothing now."))
        out.items("offers", rows, OFFERS)
    return ExitCode.OK


def list_machines(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        query = {"pool": args.pool, "gone": "true" if args.all else None}
        rows = api.items(MACHINES, "machines", query)
        if not rows and not out.for_programs:
            out.hint(_("No machines now. A pool starts one when a job needs it."))
        out.items("machines", rows, MACHINE_LIST)
        useless = useless_sentence(rows)
        if useless and not out.for_programs:
            out.hint(useless)
    return ExitCode.OK


def useless_sentence(rows: list[dict[str, Any]]) -> str:
    """Says what the machines cost that do nothing now; empty where all are of use."""
    idlers = [row for row in rows if row.get("useless")]
    if not idlers:
        return ""
    price = money(sum(row.get("hourly_micros") or 0 for row in idlers), idlers[0]["currency"])
    return ngettext(
        "%(n)s machine does nothing and costs %(price)s an hour:  simpletuner machines list",
        "%(n)s machines do nothing and cost %(price)s an hour:  simpletuner machines list",
        len(idlers),
        price=price,
    )


def get_machine(args: argparse.Namespace) -> int:
    with connected(args) as api:
        Output(args).item(api.get(f"{MACHINES}/{segment(args.id)}"), MACHINE_DETAIL)
    return ExitCode.OK


def end_machine(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        answer = api.post(f"{MACHINES}/{segment(args.id)}/end", {"now": args.now})
        out.say(_("machine %(id)s: %(status)s", id=args.id, status=answer["status"]))
        if out.shows_result:
            out.item(answer, MACHINE_LIST)
    return ExitCode.OK
