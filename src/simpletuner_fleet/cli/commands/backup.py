"""Declares the `simpletuner backup` commands and their options."""

from simpletuner_fleet.cli.commands.rows import Noun, OneOf, Verb, argument, switch

DATABASE = argument(
    "--database-url",
    metavar="URL",
    help="The database (default: that of the server's settings, or in the data dir)",
)
FILE = argument("file", metavar="FILE", help="The backup")
KEYS = argument(
    "--keys",
    metavar="FILE",
    help="The keys of sealed secrets, certificates and the audit log, in a file apart",
)
CREDENTIALS = OneOf(
    (
        argument(
            "--revocations",
            action="append",
            default=[],
            metavar="FILE",
            help="Journal of what was revoked since (default: revocations.jsonl in the data dir, with PostgreSQL"
            " in the storage); may be repeated",
        ),
        switch(
            "--trust-credentials",
            help="Believe every token and password of the backup, though nobody knows what was revoked since",
        ),
    )
)

BACKUP = Noun(
    "backup",
    "Back up the database while the server runs, and go back to a backup",
    "nouns.backup",
    (
        Verb(
            "create",
            "Copy the database into one file; the server goes on meanwhile",
            (FILE, KEYS, DATABASE),
            calls=False,
        ),
        Verb("verify", "Check that a backup is whole and can be restored", (FILE,), calls=False),
        Verb(
            "restore",
            "Put a backup in the place of the database; the server must not run",
            (
                FILE,
                KEYS,
                DATABASE,
                argument(
                    "--storage-url",
                    metavar="URL",
                    help="The storage that several servers share, where the journal of revocations lies"
                    " (default: that of the server's settings)",
                ),
                switch("--replace", help="Also where there is a database: the present one is kept beside it"),
                CREDENTIALS,
            ),
            calls=False,
        ),
    ),
)
