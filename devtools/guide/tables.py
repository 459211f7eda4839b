"""The guide's reference tables, made from the tables by which the programs run.

What the catalogues know is told in the reader's language; flags, paths, help and codes are English everywhere.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path

import simpletuner_fleet
from devtools.guide.columns import COLUMNS
from devtools.guide.command_table import command_rows
from simpletuner_fleet.core.errors import FleetError
from simpletuner_fleet.core.events import EventType
from simpletuner_fleet.core.jobs.job import JobState
from simpletuner_fleet.core.placement.reasons import REASONS
from simpletuner_fleet.core.workers.worker import WorkerStatus
from simpletuner_fleet.http.api.telemetry import NOTHING_SEEN, Telemetry
from simpletuner_fleet.http.application import ROUTES
from simpletuner_fleet.http.edge.problems import STATUS
from simpletuner_fleet.languages import Words, translator
from simpletuner_fleet.languages.names import (
    EVENTS,
    FAILURES,
    JOB_STATUSES,
    WORKER_STATUS_MEANINGS,
    WORKER_STATUSES,
)
from simpletuner_fleet.settings import CLIENT, SERVER, WORKER, Setting
from simpletuner_fleet.web.parts.permission_names import GROUPS

Row = tuple[str, ...]
PACKAGE = Path(simpletuner_fleet.__file__).parent
DEFINES_ERRORS = re.compile(r"^class \w+\((?:errors\.)?FleetError\):", re.MULTILINE)
BLANK = re.compile(r"%\(\w+\)s")


def table(name: str, language: str) -> str:
    """Returns a table of Markdown by its name."""
    columns, rows = TABLES[name]
    titles = COLUMNS[language]
    lines = [[titles[column] for column in columns], ["---"] * len(columns), *rows(translator(language))]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def code(text: str) -> str:
    """In a table a bar would end the cell, even between code marks."""
    return f"`{text.replace('|', chr(92) + '|')}`" if text else ""


def said(words: Words, sentence: str) -> str:
    """A sentence for people, with an ellipsis for each blank."""
    filled = BLANK.sub("…", words.gettext(sentence)).replace("%%", "%")
    return " ".join(filled.split()).replace("|", "\\|").replace("<", "\\<").replace("*", "\\*")


def _settings(rows: tuple[Setting, ...]) -> Callable[[Words], Iterator[Row]]:
    def listed(words: Words) -> Iterator[Row]:
        for row in rows:
            flag = ", ".join(code(flag) for flag in row.flags)
            shown = "" if row.secret or row.default in (None, "", False, (), []) else code(str(row.default))
            yield flag, code(row.env), code(row.name), shown, said(words, row.help)

    return listed


def _calls(words: Words) -> Iterator[Row]:
    for route in sorted(ROUTES, key=lambda row: (row.path, row.method)):
        yield code(f"{route.method} {route.path}"), code(str(route.permission)), said(words, route.summary)


def _events(words: Words) -> Iterator[Row]:
    for event in sorted(EventType):
        yield code(event), said(words, EVENTS[event])


def _metrics(words: Words) -> Iterator[Row]:
    page = Telemetry().page(NOTHING_SEEN).decode()
    types = dict(re.findall(r"^# TYPE (simpletuner\w+) (\w+)$", page, re.MULTILINE))
    for name, meaning in re.findall(r"^# HELP (simpletuner\w+) (.+)$", page, re.MULTILINE):
        yield code(name), types[name], said(words, meaning)


def _job_states(words: Words) -> Iterator[Row]:
    for state in JobState:
        yield code(state), said(words, JOB_STATUSES[state])


def _worker_statuses(words: Words) -> Iterator[Row]:
    for status in WorkerStatus:
        yield code(status), said(words, WORKER_STATUSES[status]), said(words, WORKER_STATUS_MEANINGS[status])


def _waiting(words: Words) -> Iterator[Row]:
    for reason in REASONS.values():
        yield (
            code(reason.code),
            said(words, reason.sentence),
            " ".join(said(words, one) for one in reason.fixes),
        )


def _failures(words: Words) -> Iterator[Row]:
    for kind, shown in FAILURES.items():
        yield code(kind), said(words, shown)


def _errors(words: Words) -> Iterator[Row]:
    for error in _told_errors():
        status = next((str(STATUS[base]) for base in error.__mro__ if base in STATUS), "")
        yield code(error.code), status, said(words, error.__doc__ or ""), said(words, error.next_step or "")


def _told_errors() -> list[type[FleetError]]:
    """Of the modules that make a family of them: what else happens to be imported must not change the page."""
    found = [
        path
        for path in sorted(PACKAGE.rglob("*.py"))
        if DEFINES_ERRORS.search(path.read_text(encoding="utf-8"))
    ]
    modules = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in found}
    for module in sorted(modules):
        import_module(module)
    by_code = {kind.code: kind for kind in _kinds(FleetError) if kind.__module__ in modules}
    return [by_code[code] for code in sorted(by_code)]


def _kinds(error: type[FleetError]) -> Iterable[type[FleetError]]:
    """Those further down first, so that of two with one code the more general one is told."""
    for kind in error.__subclasses__():
        yield from _kinds(kind)
        yield kind


def _permissions(words: Words) -> Iterator[Row]:
    for _, permissions in GROUPS:
        for permission, meaning in permissions:
            yield code(permission), said(words, meaning)


def _commands(words: Words) -> Iterator[Row]:
    for shown, meaning in command_rows():
        name = code(shown)
        yield f"**{name}**" if shown.startswith("simpletuner") else name, said(words, meaning)


TABLES: dict[str, tuple[tuple[str, ...], Callable[[Words], Iterator[Row]]]] = {
    "settings-server": (("setting", "variable", "key", "default", "meaning"), _settings(SERVER)),
    "settings-worker": (("setting", "variable", "key", "default", "meaning"), _settings(WORKER)),
    "settings-client": (("setting", "variable", "key", "default", "meaning"), _settings(CLIENT)),
    "commands": (("command", "meaning"), _commands),
    "calls": (("call", "permission", "meaning"), _calls),
    "events": (("event", "name"), _events),
    "metrics": (("metric", "type", "meaning"), _metrics),
    "job-states": (("state", "name"), _job_states),
    "worker-statuses": (("state", "name", "meaning"), _worker_statuses),
    "waiting": (("code", "meaning", "next"), _waiting),
    "failures": (("code", "name"), _failures),
    "permissions": (("permission", "meaning"), _permissions),
    "errors": (("code", "status", "meaning", "next"), _errors),
}
