"""Finds the value of each setting: flag, then environment, then file, then default.

Each is resolved on its own, and remembers where it came from.
"""

import os
import tomllib
from argparse import Namespace
from collections.abc import Iterable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from simpletuner_fleet.client.errors import ClientError, usage
from simpletuner_fleet.core.configs.spelling import nearest
from simpletuner_fleet.languages import _, known
from simpletuner_fleet.settings import GROUPS, Setting, values

SYSTEM_FILE = Path("/etc/simpletuner/config.toml")
PREFIX, ALIKE = "SIMPLETUNER_", 0.93
GUESSED = {"SIMPLETUNER_TOKEN": "SIMPLETUNER_API_TOKEN"}
"""Names that people try, and that resemble too little."""
IN_A_JOB = frozenset({"SIMPLETUNER_JOB_ID"})
"""What a worker tells its trainer, where it resembles a setting."""
HIDDEN_TOKEN = "_SIMPLETUNER_WORKER_TOKEN_FLAG"
"""Carries `--worker-token` over the re-exec that takes it off the command line."""


class Rank(IntEnum):
    DEFAULT = 0
    FILE = 1
    ENVIRONMENT = 2
    FLAG = 3


class Source(NamedTuple):
    rank: Rank
    where: str


TOKENS = ("worker_token", "api_token", "admin_token")


class Resolved(NamedTuple):
    value: Any
    source: Source


def config_home(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if base else Path.home() / ".config") / "simpletuner"


def resolve(
    group: str, args: object, environ: Mapping[str, str] = os.environ
) -> tuple[dict[str, Resolved], list[str]]:
    """Returns every setting of the group with its value and source, and notes for the user."""
    notes = _misspelt_variables(environ)
    files = _tables(group, getattr(args, "config_file", None), environ, notes)
    finder = _Finder(group, args, environ, files, notes)
    resolved = {row.name: finder.find(row) for row in GROUPS[group]}
    return resolved, notes


def defaults(group: str) -> dict[str, Resolved]:
    """Returns every setting of the group as it is where nobody has set anything."""
    finder = _Finder(group, None, {}, [], [])
    return {row.name: finder.find(row) for row in GROUPS[group]}


def apply(group: str, args: Namespace, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Writes the values into the namespace and their sources into `args.sources`; returns the notes."""
    resolved, notes = resolve(group, args, environ)
    for name, setting in resolved.items():
        setattr(args, name, setting.value)
    args.sources = {name: setting.source for name, setting in resolved.items()}
    return notes


class _Finder(NamedTuple):
    group: str
    args: object
    environ: Mapping[str, str]
    files: list[tuple[str, dict[str, Any]]]
    notes: list[str]

    def find(self, row: Setting) -> Resolved:
        for raw, source in self._candidates(row):
            return Resolved(self._parsed(row, raw, source), source)
        default = values.path(row.default) if row.parse is values.path and row.default else row.default
        return Resolved(default, Source(Rank.DEFAULT, _("default")))

    def _candidates(self, row: Setting) -> Iterable[tuple[Any, Source]]:
        """Yields what was given for the setting, strongest first."""
        environ = self.environ
        flag = getattr(self.args, row.name, None)
        if flag is not None:
            yield flag, Source(Rank.FLAG, _("flag %(name)s", name=row.flags[-1] if row.flags else row.name))
        if row.name == "worker_token" and HIDDEN_TOKEN in environ:
            yield environ[HIDDEN_TOKEN], Source(Rank.FLAG, _("flag %(name)s", name="--worker-token"))
        if row.env and row.env in environ and (environ[row.env] != "" or row.parse is values.boolean):
            yield environ[row.env], Source(Rank.ENVIRONMENT, _("environment %(name)s", name=row.env))
        for where, table in self.files:
            if row.name in table:
                yield table[row.name], Source(Rank.FILE, _("file %(path)s", path=where))

    def _parsed(self, row: Setting, raw: Any, source: Source) -> Any:
        if isinstance(raw, bool):
            raw = "true" if raw else "false"
        if isinstance(raw, dict):
            raw = [f"{key}={value}" for key, value in raw.items()]
        raw = [str(item) for item in raw] if isinstance(raw, list) else str(raw)
        if row.action == "append" and isinstance(raw, str):
            raw = [raw]
        elif row.action != "append" and isinstance(raw, list):
            raw = ",".join(raw)
        if row.name in TOKENS and isinstance(raw, str) and raw != raw.strip():
            self.notes.append(whitespace_note(source))
        try:
            return row.parse(raw)
        except ValueError as error:
            given = raw if isinstance(raw, str) else ",".join(raw)
            raise usage(
                _("%(name)s has an invalid value (%(where)s)", name=row.name, where=source.where)
                if source.rank == Rank.FILE
                else _("%(where)s has an invalid value", where=source.where),
                str(error) if row.secret else _("%(why)s, got '%(value)s'", why=error, value=given),
                _("correct it, or leave it out")
                if self.group == "client"
                else f"simpletuner {self.group} --help",
            ) from None


def whitespace_note(source: Source) -> str:
    return _("note: whitespace around the token was taken off (%(where)s)", where=source.where)


def _tables(
    group: str, config_file: str | None, environ: Mapping[str, str], notes: list[str]
) -> list[tuple[str, dict[str, Any]]]:
    usual = [config_home(environ) / "config.toml", SYSTEM_FILE]
    candidates = [Path(os.path.expanduser(config_file))] if config_file else usual
    tables = []
    for file in candidates:
        document = _read_document(file, required=config_file is not None)
        if document is None:
            continue
        tables.append((str(file), _own_table(file, document, group)))
        for other in document.keys() - {group}:
            notes.extend(
                _("note: %(file)s: %(why)s", file=file, why=_misspelt(other, unknown))
                for unknown in _unknown_in(document[other], other)
            )
    return tables


def _read_document(file: Path, *, required: bool) -> dict[str, Any] | None:
    try:
        with file.open("rb") as stream:
            document = tomllib.load(stream)
    except (FileNotFoundError, NotADirectoryError):
        if required:
            raise _unreadable(file, _("there is no such file")) from None
        return None
    except OSError as error:
        raise _unreadable(file, error.strerror or str(error)) from None
    except UnicodeDecodeError:
        raise _unreadable(file, _("it is not text")) from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _unreadable(file, _("it is not TOML: %(error)s", error=error)) from None
    for key in document:
        if key not in GROUPS:
            raise _unreadable(file, _outside(key))
    return document


def _own_table(file: Path, document: dict[str, Any], group: str) -> dict[str, Any]:
    table = document.get(group, {})
    if not isinstance(table, dict):
        raise _unreadable(file, _("[%(group)s] is not a table", group=group))
    for unknown in _unknown_in(table, group):
        raise _unreadable(file, _misspelt(group, unknown))
    return {key.replace("-", "_"): value for key, value in table.items()}


def _unknown_in(table: object, group: str) -> list[str]:
    if not isinstance(table, dict):
        return []
    return sorted({key.replace("-", "_") for key in table} - {row.name for row in GROUPS[group]})


def _misspelt_variables(environ: Mapping[str, str]) -> list[str]:
    """Returns notes on variables that resemble one of ours; others may be the trainer's, which begin alike."""
    ours = {row.env for rows in GROUPS.values() for row in rows if row.env}
    notes = []
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in ours | IN_A_JOB:
            near = GUESSED.get(name) or nearest(name, ours, ALIKE)
            if near:
                notes.append(
                    _("note: %(name)s is not a setting; did you mean %(near)s?", name=name, near=near)
                )
    language = environ.get("SIMPLETUNER_LANG")
    if language and not known(language):
        notes.append(
            _(
                "note: SIMPLETUNER_LANG is '%(word)s'; expected one of %(allowed)s",
                word=language,
                allowed=", ".join(values.LANGUAGES),
            )
        )
    return notes


def _outside(key: str) -> str:
    """Says what is wrong with a name at the top of the file, where only tables may stand."""
    home = [group for group, rows in GROUPS.items() if any(row.name == key.replace("-", "_") for row in rows)]
    if home:
        return _("'%(name)s' stands outside of any table: put it under [%(group)s]", name=key, group=home[0])
    near = nearest(key, GROUPS)
    if near:
        return _("there is no table '%(name)s'; did you mean [%(near)s]?", name=key, near=near)
    return _(
        "there is no table '%(name)s'; there are %(tables)s",
        name=key,
        tables=", ".join(f"[{group}]" for group in GROUPS),
    )


def _misspelt(group: str, name: str) -> str:
    near = nearest(name, [row.name for row in GROUPS[group]])
    if near:
        return _(
            "[%(group)s] has no setting '%(name)s'; did you mean '%(near)s'?",
            group=group,
            name=name,
            near=near,
        )
    return _("[%(group)s] has no setting '%(name)s'", group=group, name=name)


def _unreadable(file: Path, why: str) -> ClientError:
    return usage(
        _("the settings file %(file)s is not usable", file=file),
        why,
        _("fix the file, or name another with --config FILE"),
    )
