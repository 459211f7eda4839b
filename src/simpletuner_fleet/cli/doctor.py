"""`simpletuner doctor`: looks at everything, changes nothing, and says what to do."""

import argparse
import os
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from simpletuner_fleet.cli import checks_machine as machine
from simpletuner_fleet.cli import checks_network as network
from simpletuner_fleet.cli import connection, settings
from simpletuner_fleet.cli.errors import CliError, Exit
from simpletuner_fleet.cli.findings import Finding, Mark, bad, good
from simpletuner_fleet.cli.output import Output
from simpletuner_fleet.cli.settings import Rank, Settled
from simpletuner_fleet.cli.text import clean
from simpletuner_fleet.client.trust import Choices
from simpletuner_fleet.languages import _

STYLE = {Mark.GOOD: "", Mark.DOUBT: "yellow", Mark.BAD: "red"}


class Section(NamedTuple):
    title: str
    findings: Iterator[Finding]


def doctor(args: argparse.Namespace) -> int:
    out = Output(args)
    found = []
    for section in _sections(args):
        if not out.for_programs:
            print(section.title)
        for finding in section.findings:
            found.append((section.title, finding))
            if not out.for_programs:
                _print(out, finding)
    if out.for_programs:
        items = [{"section": title, **finding._asdict()} for title, finding in found]
        out.items("doctor", items, (), id_field="about")
    worst = any(finding.mark is Mark.BAD for _, finding in found)
    if not out.for_programs:
        out.say(_("Something needs mending, see ✗ above.") if worst else _("Nothing stands in the way."))
    return Exit.FAILED if worst else Exit.OK


def _sections(args: argparse.Namespace) -> Iterator[Section]:
    if args.what != "server":
        yield Section(_("Worker settings"), _settings("worker", args))
    if args.what != "worker":
        yield Section(_("Server settings"), _settings("server", args))
    yield Section(_("This machine"), _machine(args))
    if args.what != "worker":
        yield Section(_("Data"), _server_data(args))
    yield Section(_("Way to the orchestrator"), _network(args))


def _settings(group: str, args: argparse.Namespace) -> Iterator[Finding]:
    """What was chosen, and by what; defaults that nobody touched are left out."""
    try:
        settled, notes = settings.settle(group, _only_shared(args))
    except CliError as error:
        yield bad(_("settings"), f"{error.trouble.what}: {error.trouble.why}", error.trouble.next[0])
        return
    rows = {row.name: row for row in settings.GROUPS[group]}
    chosen = {name: found for name, found in settled.items() if found.source.rank is not Rank.DEFAULT}
    if not chosen:
        yield good(_("settings"), _("all at their defaults"))
    for name, (value, source) in chosen.items():
        shown = _("(secret)") if rows[name].secret else value
        yield good(name, _("%(shown)s   from %(where)s", shown=shown, where=source.where))
    for note in notes:
        yield Finding(Mark.DOUBT, _("token"), note.removeprefix("note: "), _("write it without whitespace"))


def _only_shared(args: argparse.Namespace) -> argparse.Namespace:
    """Flags of `doctor` itself must not count as flags of the program looked at, but for those both have."""
    names = ("data_dir", "config_file", "ssl_fingerprint", "ca_cert", "ssl_no_verify")
    return argparse.Namespace(**{name: getattr(args, name) for name in names if hasattr(args, name)})


def _machine(args: argparse.Namespace) -> Iterator[Finding]:
    yield from machine.command_clash(os.environ)
    if args.what != "server":
        yield from machine.gpus(os.environ)
        work_dir = _settled("worker", args)["work_dir"].value
        yield machine.disk(_("work folder"), Path(work_dir or Path.cwd()))
        yield from machine.shared_memory()
    yield machine.open_files()


def _server_data(args: argparse.Namespace) -> Iterator[Finding]:
    if find_spec("uvicorn") is None or find_spec("starlette") is None:
        yield bad(_("server packages"), _("not installed"), "pip install 'simpletuner-fleet[server]'")
        return
    from simpletuner_fleet.cli import checks_server as server  # a worker's machine has no server packages

    settled = _settled("server", args)
    folder = Path(settled["data_dir"].value)
    yield from server.data_folder(folder)
    yield from server.database(settled["database_url"].value, folder)


def _network(args: argparse.Namespace) -> Iterator[Finding]:
    """As the worker would go, if it knows its orchestrator; else as the commands do."""
    worker = _settled("worker", args)
    if args.what != "server" and worker["orchestrator_url"].value:
        trust = Choices(
            worker["ssl_fingerprint"].value, worker["ca_cert"].value, worker["ssl_no_verify"].value
        )
        token = _worker_token(worker)
        yield from network.way_to(
            worker["orchestrator_url"].value, trust, "X-Worker-Token", token, network.WORKER_PROBE
        )
        return
    try:
        where = connection.find(args)
    except CliError as error:
        yield bad(_("login"), f"{error.trouble.what}: {error.trouble.why}", error.trouble.next[0])
        return
    yield good(_("server"), _("%(shown)s   from %(where)s", shown=where.url, where=where.url_from))
    if where.token:
        yield good(_("token"), _("%(shown)s   from %(where)s", shown=_("(secret)"), where=where.token_from))
    yield from network.way_to(where.url, where.trust, "Authorization", where.token, network.WHOAMI)


def _worker_token(worker: dict[str, Settled]) -> str | None:
    if worker["worker_token"].value:
        return str(worker["worker_token"].value)
    file = worker["worker_token_file"].value
    try:
        return Path(file).read_text(encoding="utf-8").strip() if file and file != "-" else None
    except (OSError, UnicodeDecodeError):
        return None


def _settled(group: str, args: argparse.Namespace) -> dict[str, Settled]:
    """Wrong settings were reported already; the other checks go on with the defaults."""
    try:
        return settings.settle(group, _only_shared(args))[0]
    except CliError:
        return settings.settle(group, argparse.Namespace(), {"XDG_CONFIG_HOME": os.devnull})[0]


def _print(out: Output, finding: Finding) -> None:
    line = f"  {finding.mark} {clean(finding.about)}: {clean(finding.what)}"
    fix = (
        "      " + _("fix: %(fix)s", fix=clean(finding.fix))
        if finding.fix and finding.mark is not Mark.GOOD
        else ""
    )
    if not out.terminal:
        print("\n".join(filter(None, (line, fix))))
        return
    from rich.text import Text  # heavy, and only a terminal needs it

    console = out.console()
    for text, indent, style in ((line, "    ", STYLE[finding.mark]), (fix, "           ", "")):
        for row in textwrap.wrap(
            text, console.width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        ):
            console.print(Text(row, style=style), soft_wrap=True)
