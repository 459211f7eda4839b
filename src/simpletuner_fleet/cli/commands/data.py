"""Declares the `simpletuner data` commands and their options."""

from simpletuner_fleet.cli.commands.rows import Noun, Verb, argument, switch

DATASET = argument("dataset", metavar="ID", help="A dataset's id, a beginning of it, or its name")

PUSH = (
    argument("folder", metavar="DIR", help="Links to files are followed; links to folders are refused"),
    argument("--name", metavar="NAME", help="A name for people (default: the folder's)"),
    switch(
        "--with-indices",
        help="Also the trainer's own aspect_ratio_bucket_*.json, which name paths of this machine",
    ),
)

DATA = Noun(
    "data",
    "Datasets: pushed once, kept by content, cached on workers",
    "nouns.data",
    (
        Verb(
            "push", "Upload a folder; only what is missing is sent, and the same folder has the same id", PUSH
        ),
        Verb("list", "List datasets, newest first"),
        Verb(
            "show",
            "Show one dataset, and which workers have it",
            (DATASET, switch("--files", help="List its files instead")),
        ),
        Verb("pull", "Fetch a dataset into a folder, verified", (DATASET, argument("folder", metavar="DIR"))),
        Verb("delete", "Delete a dataset that no job needs any more", (DATASET,)),
    ),
)
