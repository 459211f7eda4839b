"""Runs `simpletuner doctor`: looks at everything, changes nothing, and says what to do."""

import argparse
import os
import textwrap
from collections.abc import Collection, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from simpletuner_fleet.cli.doctor import checks_machine as machine
from simpletuner_fleet.cli.doctor import checks_network as network
from simpletuner_fleet.cli.doctor.findings import CheckFinding, FindingMark, bad, doubt, good
from simpletuner_fleet.cli.frame.errors import CliError, ExitCode
from simpletuner_fleet.cli.frame.output import Output
from simpletuner_fleet.cli.frame.text import clean
from simpletuner_fleet.cli.frame.unforeseen import unforeseen
from simpletuner_fleet.client import connection, resolve_settings
from simpletuner_fleet.client.resolve_settings import Rank, Resolved
from simpletuner_fleet.client.trust import Choices
from simpletuner_fleet.languages import _
from simpletuner_fleet.settings import GROUPS

STYLE = {FindingMark.GOOD: "", FindingMark.DOUBT: "yellow", FindingMark.BAD: "red"}


class DoctorSection(NamedTuple):
    title: str
    findings: Iterator[CheckFinding]


def doctor(args: argparse.Namespace) -> int:
    out = Output(args)
    findings = []
    for section in _sections(args):
        if not out.shows_result:
            print(section.title)
        for finding in _kept_going(section.title, section.findings):
            findings.append((section.title, finding))
            if not out.shows_result:
                _print(out, finding)
    if out.shows_result:
        items = [{"section": title, **finding._asdict()} for title, finding in findings]
        out.items("doctor", items, (), id_field="about")
    marks = {finding.mark for _, finding in findings}
    if not out.shows_result:
        out.say(_verdict(marks))
    return ExitCode.FAILED if FindingMark.BAD in marks else ExitCode.OK


def _verdict(marks: Collection[FindingMark]) -> str:
    if FindingMark.BAD in marks:
        return _("Something needs fixing; see ✗ above.")
    if FindingMark.DOUBT in marks:
        return _("Nothing is broken, but something is in doubt; see ! above.")
    return _("No problems found.")


def _kept_going(about: str, findings: Iterable[CheckFinding]) -> Iterator[CheckFinding]:
    """Yields what a check finds; one that breaks off becomes a finding, so that those after it are still made."""
    try:
        yield from findings
    except Exception as error:  # whatever it is, the machine that it happens on is what the doctor looks at
        trouble = error.trouble if isinstance(error, CliError) else unforeseen(error)
        yield bad(about, f"{trouble.what}: {trouble.why}", trouble.next[0])


def _sections(args: argparse.Namespace) -> Iterator[DoctorSection]:
    if args.what != "server":
        yield DoctorSection(_("Worker settings"), _settings("worker", args))
    if args.what != "worker":
        yield DoctorSection(_("Server settings"), _settings("server", args))
    yield DoctorSection(_("This machine"), _machine(args))
    if args.what != "worker":
        yield DoctorSection(_("Data"), _server_data(args))
    yield DoctorSection(_("Connection to the orchestrator"), _network(args))


def _settings(group: str, args: argparse.Namespace) -> Iterator[CheckFinding]:
    """Says which settings were chosen, and by what; untouched defaults are left out."""
    try:
        resolved, notes = resolve_settings.resolve(group, _only_shared(args))
    except CliError as error:
        yield bad(_("settings"), f"{error.trouble.what}: {error.trouble.why}", error.trouble.next[0])
        return
    rows = {row.name: row for row in GROUPS[group]}
    changed = {name: setting for name, setting in resolved.items() if setting.source.rank is not Rank.DEFAULT}
    if not changed:
        yield good(_("settings"), _("all at their defaults"))
    for name, (value, source) in changed.items():
        text = _("(secret)") if rows[name].secret else value
        yield good(name, _("%(shown)s   from %(where)s", shown=text, where=source.where))
    for note in notes:
        of_a_token = any(note == resolve_settings.whitespace_note(one.source) for one in changed.values())
        about = _("token") if of_a_token else _("settings")
        fix = _("write it without whitespace") if of_a_token else _("correct it, or leave it out")
        yield doubt(about, note.removeprefix("note: "), fix)


def _only_shared(args: argparse.Namespace) -> argparse.Namespace:
    """Returns only the flags that `doctor` shares with the programs: its own must not count as theirs."""
    names = ("data_dir", "config_file", "ssl_fingerprint", "ca_cert", "ssl_no_verify", "plain_http")
    return argparse.Namespace(**{name: getattr(args, name) for name in names if hasattr(args, name)})


def _machine(args: argparse.Namespace) -> Iterator[CheckFinding]:
    yield from machine.command_clash(os.environ)
    if args.what != "server":
        yield from machine.gpus(os.environ)
        resolved = _resolved("worker", args)
        yield from machine.trainer(resolved["trainer_python"].value, os.environ)
        work_dir = resolved["work_dir"].value
        yield machine.disk(_("work folder"), Path(work_dir or Path.cwd()))
        yield from machine.shared_memory()
        yield machine.control_groups(resolved["job_memory_gb"].value, resolved["job_pids"].value)
    yield machine.open_files()


def _server_data(args: argparse.Namespace) -> Iterator[CheckFinding]:
    if find_spec("httptools") is None or find_spec("uvloop") is None:
        yield bad(_("server packages"), _("not installed"), "pip install 'simpletuner-fleet[server]'")
        return
    # a worker's machine has no server packages
    from simpletuner_fleet.cli.doctor import checks_server as server

    resolved = _resolved("server", args)
    folder = Path(resolved["data_dir"].value)
    yield from _kept_going(_("data folder"), server.data_folder(folder))
    yield from _kept_going(_("database"), server.database(resolved["database_url"].value, folder))
    bucket = server.direct_storage(
        resolved["storage_url"].value,
        resolved["storage_direct"].value,
        resolved["storage_direct_url"].value,
        os.environ,
    )
    yield from _kept_going(_("bucket"), bucket)


def _network(args: argparse.Namespace) -> Iterator[CheckFinding]:
    """Checks the connection of the worker, if its orchestrator is known; otherwise that of the commands."""
    worker = _resolved("worker", args)
    if args.what != "server" and worker["orchestrator_url"].value:
        trust = Choices(
            worker["ssl_fingerprint"].value,
            worker["ca_cert"].value,
            worker["ssl_no_verify"].value,
            worker["plain_http"].value,
        )
        try:
            token = _worker_token(worker)
        except (OSError, UnicodeDecodeError) as error:
            file = worker["worker_token_file"].value
            unread = _("cannot read %(path)s", path=file)
            yield bad(_("token"), f"{unread}: {error}", _("verify the path"))
            return
        for url in worker["orchestrator_url"].value.split(","):
            yield from network.way_to(url, trust, "X-Worker-Token", token, network.WORKER_PROBE)
        return
    try:
        where = connection.find(args)
    except CliError as error:
        yield bad(_("login"), f"{error.trouble.what}: {error.trouble.why}", error.trouble.next[0])
        return
    yield good(_("server"), _("%(shown)s   from %(where)s", shown=where.url, where=where.url_from))
    if where.token:
        yield good(_("token"), _("%(shown)s   from %(where)s", shown=_("(secret)"), where=where.token_from))
    for url in (where.url, *where.further_urls):
        yield from network.way_to(url, where.trust, "Authorization", where.token, network.WHOAMI)


def _worker_token(worker: dict[str, Resolved]) -> str | None:
    if worker["worker_token"].value:
        return str(worker["worker_token"].value)
    file = worker["worker_token_file"].value
    return Path(file).read_text(encoding="utf-8").strip() if file and file != "-" else None


def _resolved(group: str, args: argparse.Namespace) -> dict[str, Resolved]:
    """Returns the settings, or the defaults where they are wrong, which was reported already."""
    try:
        return resolve_settings.resolve(group, _only_shared(args))[0]
    except CliError:
        return resolve_settings.defaults(group)


def _print(out: Output, finding: CheckFinding) -> None:
    line = f"  {finding.mark} {clean(finding.about)}: {clean(finding.what)}"
    fix = (
        "      " + _("fix: %(fix)s", fix=clean(finding.fix))
        if finding.fix and finding.mark is not FindingMark.GOOD
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
