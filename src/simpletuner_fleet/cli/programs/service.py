"""Runs `simpletuner service`: lets systemd start a server or worker with the machine and restart it after a crash."""

import argparse
import getpass
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simpletuner_fleet.cli.frame.errors import ExitCode, fail, usage
from simpletuner_fleet.cli.frame.private_files import write_private
from simpletuner_fleet.cli.programs import entry
from simpletuner_fleet.cli.programs.service_unit import (
    LONGER_THAN_GRACE_S,
    OWN_USER,
    SERVER_STOPS_WITHIN_S,
    Unit,
    own_user_line,
    unit_name,
)
from simpletuner_fleet.client import resolve_settings
from simpletuner_fleet.client.resolve_settings import Rank
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.languages import _
from simpletuner_fleet.settings import GROUPS, Setting, values

UNITS, KEPT = Path("etc/systemd/system"), Path("etc/simpletuner")
OWN_USERS = Path("etc/sysusers.d/simpletuner-worker.conf")
TOKEN_FILE = "worker-token"
NOT_OPTIONS = ("worker_token", "worker_token_file")
READABLE, UNIT_FILE, OTHERS_ENTER = 0o755, 0o644, 0o001


def install(args: argparse.Namespace) -> int:
    """Writes the unit, and the token beside it for root alone; then starts it, unless --root was given."""
    unit, token = _described(args)
    root = Path(args.root or "/")
    own_user = unit.user == OWN_USER
    if not args.root:
        _must_have_systemd()
        _must_be_reachable(unit) if own_user else _must_know(unit.user)
    try:
        if own_user:
            (root / OWN_USERS).parent.mkdir(mode=READABLE, parents=True, exist_ok=True)
            (root / OWN_USERS).write_text(own_user_line(), encoding="ascii")
        if token:
            (root / KEPT).mkdir(mode=READABLE, parents=True, exist_ok=True)
            write_private(root / KEPT / TOKEN_FILE, token)
        (root / UNITS).mkdir(mode=READABLE, parents=True, exist_ok=True)
        file = root / UNITS / unit.name
        file.write_text(unit.text(), encoding="utf-8")
        file.chmod(UNIT_FILE)
    except OSError as error:
        raise _cannot_write(error) from None
    if not args.root:
        if own_user:
            _run_or_tell("systemd-sysusers")
        _systemctl("daemon-reload")
        _systemctl("enable", "--quiet", unit.name)
        _systemctl("restart", unit.name)
    print(_("%(unit)s is installed", unit=unit.name))
    print(f"  {file}\n  journalctl -u {unit.name} -f")
    return ExitCode.OK


def show(args: argparse.Namespace) -> int:
    unit, _token = _described(args)
    print(unit.text(), end="")
    return ExitCode.OK


def uninstall(args: argparse.Namespace) -> int:
    name, root = unit_name(args.role), Path(args.root or "/")
    file = root / UNITS / name
    if not file.exists():
        raise fail(
            _("%(unit)s is not installed", unit=name),
            _("there is no file %(file)s", file=file),
            f"simpletuner service install {args.role}",
            "E_NOT_FOUND",
            ExitCode.NOT_FOUND,
        )
    if not args.root:
        _must_have_systemd()
        _systemctl("disable", "--now", "--quiet", name)
    try:
        file.unlink()
        if args.role == "worker":
            (root / KEPT / TOKEN_FILE).unlink(missing_ok=True)
            (root / OWN_USERS).unlink(missing_ok=True)
    except OSError as error:
        raise _cannot_write(error) from None
    if not args.root:
        _systemctl("daemon-reload")
    print(_("%(unit)s removed", unit=name))
    return ExitCode.OK


def status(args: argparse.Namespace) -> int:
    _must_have_systemd()
    return subprocess.run(["systemctl", "status", "--no-pager", unit_name(args.role)], check=False).returncode


def _described(args: argparse.Namespace) -> tuple[Unit, str | None]:
    """Returns the unit, and the token, which is not part of it."""
    flags = {row.name: getattr(args, row.name, None) for row in GROUPS[args.role]}
    resolved, notes = resolve_settings.resolve(args.role, args)
    for note in notes:
        print(note, file=sys.stderr)
    options, environment = _words(args.role, resolved, flags, os.environ)
    for name, (value, source) in resolved.items():
        setattr(args, name, value)
        args.sources = {**getattr(args, "sources", {}), name: source}
    token, stop_within_s = None, float(SERVER_STOPS_WITHIN_S)
    if args.role == "worker":
        entry.check_worker_settings(args)
        token = _token(args)
        stop_within_s = float(args.shutdown_grace) + LONGER_THAN_GRACE_S
    unit = Unit(
        role=args.role,
        program=_program(),
        options=options,
        user=args.run_as or _usual_user(args.role),
        environment=environment,
        token_file=str(Path("/") / KEPT / TOKEN_FILE) if token else "",
        stop_within_s=stop_within_s,
        writes_to=_writes_to(args) if args.role == "worker" else (),
    )
    return unit, token


def _usual_user(role: str) -> str:
    """Returns the user to run as: a worker has its own; a server runs as whoever called sudo, who has its data."""
    return OWN_USER if role == "worker" else os.environ.get("SUDO_USER") or getpass.getuser()


def _writes_to(args: argparse.Namespace) -> list[str]:
    chosen = [args.work_dir, args.data_cache_dir, *(path for path, writable in args.job_path if writable)]
    return [str(Path(path).absolute()) for path in chosen if path]


def _words(
    role: str,
    resolved: Mapping[str, resolve_settings.Resolved],
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
) -> tuple[list[str], dict[str, str]]:
    """Returns the chosen settings as options of the command; a setting without a flag stays a variable."""
    options: list[str] = []
    environment: dict[str, str] = {}
    for row in GROUPS[role]:
        value, source = resolved[row.name]
        if source.rank < Rank.ENVIRONMENT or row.name in NOT_OPTIONS:
            continue
        if row.secret:
            raise usage(
                _("secrets do not belong in a unit file, which every user can read"),
                _("%(name)s was set by %(where)s", name=row.name, where=source.where),
                _("put it into %(file)s, which only its user can read", file=resolve_settings.SYSTEM_FILE),
            )
        if not row.flags:
            environment[row.env] = environ[row.env]
        else:
            options += _option(row, value, flags[row.name], environ)
    return options, environment


def _option(row: Setting, value: Any, flag: Any, environ: Mapping[str, str]) -> list[str]:
    name = next(one for one in row.flags if one.startswith("--"))
    if row.action in ("switch", "toggle"):
        negated = f"--no-{name[2:]}"
        return [name] if value else [negated] if row.action == "toggle" else []
    if row.parse is values.path:
        return [name, str(Path(value).absolute())]
    texts = flag if flag is not None else environ[row.env]
    return [word for text in (texts if isinstance(texts, list) else [texts]) for word in (name, str(text))]


def _token(args: argparse.Namespace) -> str:
    token = args.worker_token or _read_token(Path(args.worker_token_file))
    wrong = tokens.complaint(token, tokens.WORKER)
    if wrong:
        raise fail(
            _("the worker's token is not usable"),
            wrong,
            _("on the orchestrator: simpletuner workers create NAME"),
            "E_INVALID_TOKEN",
            ExitCode.AUTH,
        )
    return str(token)


def _read_token(file: Path) -> str:
    try:
        return file.read_text("ascii", "replace").strip()
    except OSError as error:
        raise fail(
            _("cannot read %(path)s", path=file),
            str(error),
            _("give one of them"),
            "E_INVALID_TOKEN",
            ExitCode.AUTH,
        ) from None


def _program() -> list[str]:
    """Returns the command that is running now, wherever it was installed."""
    own = Path(sys.argv[0]).absolute()
    beside = Path(sys.executable).with_name("simpletuner")
    for candidate in (own, beside):
        if candidate.name == "simpletuner" and os.access(candidate, os.X_OK):
            return [str(candidate)]
    return [sys.executable, "-m", "simpletuner_fleet.cli.main"]


def _must_have_systemd() -> None:
    if shutil.which("systemctl") is None or not Path("/run/systemd/system").is_dir():
        raise fail(
            _("this machine does not run systemd"),
            _("there is no systemctl, or it does not manage this machine"),
            _("start the program with this machine's service manager; 'service print' shows the command"),
            "E_NO_SYSTEMD",
        )


def _must_be_reachable(unit: Unit) -> None:
    """Raises if the worker's own user cannot run the program, for instance in somebody's home folder."""
    program = Path(unit.program[0])
    for folder in program.resolve().parents:
        if not folder.stat().st_mode & OTHERS_ENTER:
            raise usage(
                _("the worker's own user cannot run %(program)s", program=program),
                _("%(folder)s is private", folder=folder),
                _("install it for all users, such as in /opt, or choose who runs it with --run-as"),
            )


def _must_know(user: str) -> None:
    try:
        pwd.getpwnam(user)
    except KeyError:
        raise usage(
            _("there is no user '%(user)s' on this machine", user=user),
            _("the service would run as them"),
            _("choose another with --run-as"),
        ) from None


def _systemctl(*words: str) -> None:
    _run_or_tell("systemctl", *words)


def _run_or_tell(*words: str) -> None:
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    if result.returncode:
        raise fail(
            _("%(words)s failed", words=" ".join(words)),
            result.stderr.strip() or f"exit {result.returncode}",
            "journalctl -xe",
            "E_SYSTEMD",
        )


def _cannot_write(error: OSError) -> Exception:
    return fail(
        _("cannot write %(path)s", path=error.filename),
        error.strerror or str(error),
        _("system services need root: run it with sudo"),
        "E_PERMISSION",
    )
