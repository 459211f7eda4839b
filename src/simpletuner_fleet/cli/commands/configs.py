"""Declares the `simpletuner configs` commands and their options."""

from simpletuner_fleet.cli.commands.rows import Noun, Verb, argument, repeated, switch
from simpletuner_fleet.settings import values

NAME = argument("name", metavar="NAME")

TRAINER_PYTHON = argument(
    "--trainer-python",
    metavar="PATH",
    help="The Python whose trainer brings the examples (default: this one)",
)
READ = (
    argument(
        "path",
        metavar="PATH",
        nargs="?",
        help="A folder as the trainer has it, a config.json, .toml or .env, a bundle, or NAME for config/NAME",
    ),
    argument("--example", metavar="NAME", help="An example that comes with the trainer, instead of a path"),
    TRAINER_PYTHON,
    repeated("--file", "SETTING=PATH", "The file that this setting names; may be repeated"),
    repeated("--leave", "SETTING", "Leave the file that it names to the worker; all for every one"),
)
IMPORT = (
    *READ,
    argument("--name", metavar="NAME", help="Save under this name (default: the file's or folder's)"),
)
DIFF = (
    NAME,
    argument(
        "since", metavar="A", nargs="?", read=values.positive_count, help="The older (default: before B)"
    ),
    argument("to", metavar="B", nargs="?", read=values.positive_count, help="The newer (default: newest)"),
)
EXPORT = (
    NAME,
    argument("path", metavar="DIR", nargs="?", help="Where to (default: ./NAME)"),
    switch("--force", help="Overwrite files that are there"),
)

CONFIGS = Noun(
    "configs",
    "Training configs kept by the orchestrator",
    "nouns.configs",
    (
        Verb("list", "List saved configs"),
        Verb("get", "Show a config", (NAME,)),
        Verb("import", "Save a file or folder as a config", IMPORT),
        Verb("history", "List the versions of a config", (NAME,)),
        Verb("diff", "What changed between two versions", DIFF),
        Verb("export", "Write a config to a folder", EXPORT),
        Verb("validate", "Check a file or folder without saving it", READ),
        Verb(
            "examples",
            "List the examples that come with the trainer on this machine",
            (TRAINER_PYTHON,),
            calls=False,
        ),
        Verb("delete", "Delete a config; jobs keep their copies", (NAME,)),
    ),
)
