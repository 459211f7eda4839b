"""Runs the `simpletuner configs` commands: saves, compares, checks and exports training configs."""

import argparse
import contextlib
import json
from pathlib import Path
from typing import Any

from simpletuner_fleet.cli.files import bundles
from simpletuner_fleet.cli.files.examples import example_folder, example_names
from simpletuner_fleet.cli.files.named_files import FileChoices
from simpletuner_fleet.cli.frame.errors import CliError, ExitCode, only_with, usage
from simpletuner_fleet.cli.frame.output import Column, Output, field
from simpletuner_fleet.cli.frame.quantities import ago
from simpletuner_fleet.cli.frame.words import pairs_of
from simpletuner_fleet.cli.jobs.compare import at_least, say_left_out
from simpletuner_fleet.cli.nouns.config_checks import ask_orchestrator, checked_config
from simpletuner_fleet.cli.remote.api import Api, connected
from simpletuner_fleet.client.files.file_api import segment
from simpletuner_fleet.client.troubles import Trouble
from simpletuner_fleet.languages import _, current, ngettext
from simpletuner_fleet.languages.details import detail_text
from simpletuner_fleet.settings import values

LIST = (
    field("name"),
    field("version", right=True),
    Column("SAVED", lambda config: ago(config.get("created_at"))),
    field("created_by", "BY"),
)
HISTORY = LIST[1:]
CHECKED = (field("valid"), field("trainer"), field("gpus"), field("checked_against", "CHECKED AGAINST"))
CHANGES = (
    field("path"),
    Column("WAS", lambda change: _side(change, "was"), shrinks=True),
    Column("IS", lambda change: _side(change, "is"), shrinks=True),
)
BUNDLE_KEYS = (
    *("trainer", "settings", "dataloader", "files", "env", "secrets", "resources", "datasets", "watchdog"),
    "publish",
)


def list_(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        configs = api.items("/api/configs", "configs")
        if not configs and not out.for_programs:
            out.hint(_("No configs yet. Save one:  simpletuner configs import PATH"))
        out.items("configs", configs, LIST, id_field="name")
    return ExitCode.OK


def get(args: argparse.Namespace) -> int:
    """Prints the config as JSON, on a terminal as well, since a config is JSON."""
    out = Output(args)
    with connected(args) as api:
        config = api.get(f"/api/configs/{segment(args.name)}")
        if out.format in ("jsonl", "name"):
            out.item(config, (), id_field="name")
        else:
            out.json(out.picked(config))
    return ExitCode.OK


def import_(args: argparse.Namespace) -> int:
    out = Output(args)
    if args.trainer_python and not args.example:
        raise only_with("--trainer-python", "--example", "simpletuner configs import --help")
    loaded = _loaded(args)
    name = args.name or loaded.name
    out.say_all(loaded.notes)
    with connected(args) as api:
        saved = api.put(f"/api/configs/{segment(name)}", loaded.bundle) or {}
        _warn(api, out, loaded.bundle)
        if saved.get("changed") is False:
            out.say(_("%(name)s is unchanged: version %(version)s", name=name, version=saved["version"]))
        else:
            out.say(_("saved %(name)s, version %(version)s", name=name, version=saved.get("version")))
        if out.shows_result:
            out.item({**saved, "notes": loaded.notes}, LIST, id_field="name")
        out.hint(_("Train it:  simpletuner jobs submit %(name)s", name=name))
    return ExitCode.OK


def _warn(api: Api, out: Output, bundle: dict[str, Any]) -> None:
    """Says what is wrong with a saved config now, rather than leaving that to a trainer that fails at once."""
    with contextlib.suppress(CliError):
        _say_findings(out, ask_orchestrator(api, bundle))


def history(args: argparse.Namespace) -> int:
    with connected(args) as api:
        versions = api.items(f"/api/configs/{segment(args.name)}/versions", "versions")
        Output(args).items("versions", versions[::-1], HISTORY, id_field="version")
    return ExitCode.OK


def diff(args: argparse.Namespace) -> int:
    out = Output(args)
    query = {key: value for key, value in (("from", args.since), ("to", args.to)) if value is not None}
    with connected(args) as api:
        answer = api.get(f"/api/configs/{segment(args.name)}/diff", query)
        out.items("changes", answer["changes"], CHANGES, id_field="path")
        say_left_out(out, answer)
        text = ngettext(
            "version %(old)s to version %(new)s: %(n)s change",
            "version %(old)s to version %(new)s: %(n)s changes",
            len(answer["changes"]) + answer.get("left_out", 0),
            old=answer["from"],
            new=answer["to"],
        )
        out.hint(at_least(text, answer))
    return ExitCode.OK


def export(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        config = api.get(f"/api/configs/{segment(args.name)}")
        files = bundles.save(bundle_in(config), Path(args.path or args.name), force=args.force)
        if out.shows_result:
            out.items("files", [{"path": str(file)} for file in files], (field("path"),), id_field="path")
        else:
            print(*files, sep="\n")
        out.say(_("exported %(name)s", name=args.name))
    return ExitCode.OK


def examples(args: argparse.Namespace) -> int:
    """Lists the examples of the trainer that is installed on this machine, without asking an orchestrator."""
    names = [{"name": name} for name in example_names(args.trainer_python)]
    Output(args).items("examples", names, (field("name"),), id_field="name")
    return ExitCode.OK


def validate(args: argparse.Namespace) -> int:
    """Checks a config; exits as for wrong usage where the trainer would refuse it."""
    out = Output(args)
    loaded = _loaded(args)
    out.say_all(loaded.notes)
    checked, trouble = checked_config(args, loaded.bundle)
    out.item(checked, CHECKED, id_field="trainer")
    if not out.for_programs:
        _say_findings(out, checked)
        if checked["checked_against"] is None:
            out.say(_why_unchecked(trouble))
    return ExitCode.OK if checked["valid"] else ExitCode.USAGE


def _why_unchecked(trouble: Trouble | None) -> str:
    if trouble:
        return f"{trouble.what}: {trouble.why}"
    return _(
        "The settings were not checked: no worker has reported the trainer's options yet, "
        "and --trainer-python was not given."
    )


def _say_findings(out: Output, checked: dict[str, Any]) -> None:
    words = current()
    for finding in checked["findings"]:
        hint = detail_text(words, finding.get("next") or "")
        out.say(f"{finding['level']}: {detail_text(words, finding['detail'])} {hint}".rstrip())


def delete(args: argparse.Namespace) -> int:
    with connected(args) as api:
        api.delete(f"/api/configs/{segment(args.name)}")
        Output(args).say(_("deleted %(name)s; jobs keep the copies they were submitted with", name=args.name))
    return ExitCode.OK


def _loaded(args: argparse.Namespace) -> bundles.Loaded:
    if (args.path is None) is (args.example is None):
        raise usage(
            _("name what to import"),
            _("name either a PATH or --example NAME"),
            "simpletuner configs import --help",
        )
    choices = FileChoices(pairs_of(args.file, "--file"), frozenset(values.words(args.leave)))
    path = str(example_folder(args.example, args.trainer_python)) if args.example else args.path
    return bundles.load(path, choices)


def _side(change: dict[str, Any], side: str) -> str:
    return json.dumps(change[side], ensure_ascii=False) if side in change else _("(absent)")


def bundle_in(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the bundle alone, without what the server has added to it."""
    return {key: config[key] for key in BUNDLE_KEYS if key in config}
