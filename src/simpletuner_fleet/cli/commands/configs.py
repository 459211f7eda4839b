"""`simpletuner configs …`"""

from simpletuner_fleet.cli.commands.rows import Noun, Verb, argument, switch
from simpletuner_fleet.settings import values

NAME = argument("name", metavar="NAME")

IMPORT = (
    argument("path", metavar="PATH", help="A config.json, a bundle, or a folder with a config.json"),
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
        Verb("validate", "Check a file or folder without saving it", (argument("path", metavar="PATH"),)),
        Verb("delete", "Delete a config; jobs keep their copies", (NAME,)),
    ),
)
