"""Prints, in the trainer's own Python, the options that its parser knows, as JSON after a mark.

It imports nothing of ours and nothing that is not in the standard library, but for the trainer itself.
"""

import argparse
import ctypes
import importlib
import importlib.metadata
import json
import os
import signal
import sys

MARK = "simpletuner-options:"
KINDS = {int: "int", float: "float", str: "text", None: "text"}
PR_SET_PDEATHSIG = 1
SWITCHES = ("_StoreTrueAction", "_StoreFalseAction", "BooleanOptionalAction")


LONGEST_HELP = 300
LONGEST_DEFAULT = 100


def options_of(parser: argparse.ArgumentParser) -> list[dict[str, object]]:
    options_seen = []
    fields = form_fields()
    for action in parser._actions:
        names = [name[2:].replace("-", "_") for name in action.option_strings if name.startswith("--")]
        if names and not isinstance(action, argparse._HelpAction):
            options_seen.append(
                {
                    "names": names,
                    "kind": kind_of(action),
                    "choices": [str(choice) for choice in action.choices or ()],
                    "several": action.nargs not in (None, "?", 0, 1),
                    "required": bool(action.required),
                    "default": default_of(action),
                    **described_by_form(fields.get(names[0]), action.help),
                }
            )
    return options_seen


def form_fields() -> dict[str, object]:
    """Returns the fields of the trainer's own form, by the option that each is for; none where it has no form."""
    try:
        registry = importlib.import_module("simpletuner.simpletuner_sdk.server.services.field_registry")
        known = registry.field_registry._fields.values()
        return {field.arg_name.lstrip("-").replace("-", "_"): field for field in known if field.arg_name}
    except Exception:  # another release may have it elsewhere
        return {}


def described_by_form(field: object, parser_help: object) -> dict[str, object]:
    parts: dict[str, object] = {}
    text = getattr(field, "help_text", None) or parser_help
    if isinstance(text, str) and text != argparse.SUPPRESS:
        parts["help"] = " ".join(text.split())[:LONGEST_HELP]
    for rule in getattr(field, "validation_rules", None) or ():
        kind = getattr(getattr(rule, "rule_type", None), "value", None)
        value, always = getattr(rule, "value", None), getattr(rule, "condition", None) is None
        if always and kind in ("min", "max") and isinstance(value, int | float) and abs(value) < 1e15:
            parts["least" if kind == "min" else "most"] = value
    return parts


def default_of(action: argparse.Action) -> str:
    value = action.default
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return format(value, "g") if isinstance(value, float) else str(value)
    return (
        value
        if isinstance(value, str) and len(value) <= LONGEST_DEFAULT and value != argparse.SUPPRESS
        else ""
    )


def kind_of(action: argparse.Action) -> str:
    if type(action).__name__ in SWITCHES or (action.nargs == "?" and action.const is True):
        return "switch"
    kind = next((name for type_, name in KINDS.items() if action.type is type_), "other")
    return "other" if action.nargs == "?" and kind == "text" else kind


def also_read() -> list[str]:
    """Returns names that its loader takes or drops before the parser sees them."""
    names: set[str] = set()
    try:
        utils = importlib.import_module("simpletuner.helpers.configuration.cli_utils")
        names.update(getattr(utils, "_LEGACY_ARG_HANDLERS", ()))
        registry = importlib.import_module("simpletuner.simpletuner_sdk.server.services.field_registry")
        fields = getattr(registry.field_registry, "_fields", {})
        names.update(name for name, field in fields.items() if getattr(field, "arg_name", "") is None)
    except Exception:  # another release may have neither
        pass
    return sorted(names)


def end_with_the_worker(pid: int) -> None:
    """Ends this process when the worker is killed: loading takes a minute, and nobody would wait for the answer."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != pid:  # it died before it was watched
            sys.exit(1)


def main() -> None:
    end_with_the_worker(int(sys.argv[1]))
    parser = importlib.import_module("simpletuner.helpers.configuration.cmd_args").get_argument_parser()
    document = {
        "version": importlib.metadata.version("simpletuner"),
        "options": options_of(parser),
        "also_read": also_read(),
    }
    sys.stdout.write(f"\n{MARK}{json.dumps(document)}\n")


if __name__ == "__main__":
    main()
