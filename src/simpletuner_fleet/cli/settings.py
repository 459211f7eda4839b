"""One table of every setting: its flag, its variable, its place in the file, its default.

Each is resolved on its own: flag, then environment, then file, then default; and each remembers where it came from.
"""

import argparse
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from simpletuner_fleet.cli import values
from simpletuner_fleet.cli.errors import CliError, usage
from simpletuner_fleet.languages import _

SYSTEM_FILE = Path("/etc/simpletuner/config.toml")
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


class Setting(NamedTuple):
    name: str
    parse: Callable[[Any], Any]
    help: str
    flags: tuple[str, ...] = ()
    env: str = ""
    default: Any = None
    metavar: str | None = None
    action: str = "store"
    """`store`, `switch` (present or not), `toggle` (--x and --no-x) or `append`."""
    secret: bool = False


DATA_DIR = Setting(
    "data_dir",
    values.path,
    "Where the orchestrator keeps everything (or SIMPLETUNER_HOME; default: ~/.simpletuner)",
    ("--data-dir",),
    "SIMPLETUNER_HOME",
    "~/.simpletuner",
    "DIR",
)
VERBOSE = Setting(
    "verbose",
    values.boolean,
    "Enable debug logging",
    ("-v", "--verbose"),
    "SIMPLETUNER_VERBOSE",
    False,
    None,
    "switch",
)
LOG_FORMAT = Setting(
    "log_format",
    values.log_format,
    "text or json (or SIMPLETUNER_LOG_FORMAT; default: text)",
    ("--log-format",),
    "SIMPLETUNER_LOG_FORMAT",
    "text",
    "FORMAT",
)
SSL_NO_VERIFY = Setting(
    "ssl_no_verify",
    values.boolean,
    "Do not verify the server's certificate (development only)",
    ("--ssl-no-verify",),
    "SIMPLETUNER_SSL_NO_VERIFY",
    False,
    None,
    "switch",
)
SSL_FINGERPRINT = Setting(
    "ssl_fingerprint",
    values.fingerprint,
    "Trust only this certificate, or what this CA signed: sha256:… as the server printed it",
    ("--ssl-fingerprint",),
    "SIMPLETUNER_SSL_FINGERPRINT",
    None,
    "SHA256",
)
CA_CERT = Setting(
    "ca_cert",
    values.path,
    "Trust the CA in this PEM file",
    ("--ca-cert",),
    "SIMPLETUNER_CA_CERT",
    None,
    "FILE",
)

SERVER = (
    Setting(
        "host",
        values.text,
        "Address to listen on (default: 127.0.0.1, this machine only)",
        ("--host",),
        "SIMPLETUNER_HOST",
        "127.0.0.1",
        "ADDRESS",
    ),
    Setting(
        "port",
        values.port,
        "Port to listen on (default: 8001)",
        ("--port",),
        "SIMPLETUNER_PORT",
        8001,
        "PORT",
    ),
    Setting(
        "ssl",
        values.boolean,
        "Serve HTTPS; without --ssl-cert a private CA is made and its fingerprint printed",
        ("--ssl",),
        "SIMPLETUNER_SSL",
        False,
        None,
        "switch",
    ),
    Setting(
        "ssl_cert",
        values.path,
        "Certificate chain of your own (PEM)",
        ("--ssl-cert",),
        "SIMPLETUNER_SSL_CERT",
        None,
        "FILE",
    ),
    Setting(
        "ssl_key",
        values.path,
        "Private key for it (PEM)",
        ("--ssl-key",),
        "SIMPLETUNER_SSL_KEY",
        None,
        "FILE",
    ),
    Setting(
        "ssl_san",
        values.words,
        "Further host name or address for the made certificate; may be repeated",
        ("--ssl-san",),
        "SIMPLETUNER_SSL_SAN",
        [],
        "HOST",
        "append",
    ),
    DATA_DIR,
    Setting(
        "database_url",
        values.text,
        "sqlite:///… or postgresql://… (default: SQLite in the data dir)",
        ("--database-url",),
        "SIMPLETUNER_DATABASE_URL",
        None,
        "URL",
        secret=True,
    ),
    Setting(
        "trust_loopback",
        values.boolean,
        "Calls from this machine act as the local admin without a token (loopback binds only)",
        ("--trust-loopback",),
        "SIMPLETUNER_TRUST_LOOPBACK",
        False,
        None,
        "switch",
    ),
    Setting(
        "local",
        values.boolean,
        "Run jobs with target 'local' on this machine's GPUs (default: only on a loopback bind)",
        ("--local",),
        "SIMPLETUNER_LOCAL",
        None,
        None,
        "toggle",
    ),
    Setting(
        "worker_networks",
        values.words,
        "Networks workers may connect from, for example 10.0.0.0/8,192.168.1.0/24 (default: all)",
        ("--worker-networks",),
        "SIMPLETUNER_WORKER_NETWORKS",
        [],
        "CIDR",
        "append",
    ),
    Setting(
        "trusted_proxies",
        values.words,
        "Proxies whose forwarded-for header is believed (default: none)",
        ("--trusted-proxies",),
        "SIMPLETUNER_TRUSTED_PROXIES",
        [],
        "CIDR",
        "append",
    ),
    Setting(
        "allowed_host",
        values.words,
        "Further host name the server answers to; may be repeated",
        ("--allowed-host",),
        "SIMPLETUNER_ALLOWED_HOSTS",
        [],
        "NAME",
        "append",
    ),
    LOG_FORMAT,
    VERBOSE,
    Setting(
        "storage_url",
        values.text,
        "Logs, checkpoints, artifacts: file://… or s3://…",
        env="SIMPLETUNER_STORAGE_URL",
        secret=True,
    ),
    Setting(
        "admin_token", values.text, "The first admin's token", env="SIMPLETUNER_ADMIN_TOKEN", secret=True
    ),
    Setting(
        "heartbeat_interval_s",
        values.seconds,
        "Seconds between heartbeats",
        env="SIMPLETUNER_HEARTBEAT_INTERVAL",
        default=30.0,
    ),
    Setting(
        "heartbeat_timeout_s",
        values.seconds,
        "Silence after which a worker is offline",
        env="SIMPLETUNER_HEARTBEAT_TIMEOUT",
        default=120.0,
    ),
    Setting(
        "max_retries",
        values.count,
        "Retries of a job that asks for no other number",
        env="SIMPLETUNER_MAX_RETRIES",
        default=3,
    ),
    Setting(
        "ephemeral_ttl_s",
        values.seconds,
        "When offline ephemeral workers are cleaned up",
        env="SIMPLETUNER_EPHEMERAL_TTL",
        default=3600.0,
    ),
    Setting(
        "offer_timeout_s",
        values.seconds,
        "When an offer nobody accepted goes back to the queue",
        env="SIMPLETUNER_OFFER_TIMEOUT",
        default=15.0,
    ),
    Setting(
        "offer_resend_s",
        values.seconds,
        "When an unanswered offer is sent again",
        env="SIMPLETUNER_OFFER_RESEND",
        default=3.0,
    ),
    Setting(
        "ping_interval_s",
        values.seconds,
        "Seconds between pings on a worker's stream (default: 15, or an eighth of the heartbeat timeout)",
        env="SIMPLETUNER_PING_INTERVAL",
    ),
    Setting(
        "retry_backoff_s",
        values.seconds,
        "Wait before a second retry; doubles with each further one",
        env="SIMPLETUNER_RETRY_BACKOFF",
        default=5.0,
    ),
    Setting(
        "cancel_grace_s",
        values.seconds,
        "How long a cancelled trainer may take to end by itself",
        env="SIMPLETUNER_CANCEL_GRACE",
        default=30.0,
    ),
    Setting(
        "checkpoint_wait_s",
        values.seconds,
        "How long a trainer that is to save a checkpoint before it stops is waited for",
        env="SIMPLETUNER_CHECKPOINT_WAIT",
        default=300.0,
    ),
    Setting(
        "token_warn_age_s",
        values.seconds,
        "Age from which a worker's token is warned about",
        env="SIMPLETUNER_TOKEN_WARN_AGE",
        default=90 * 86_400.0,
    ),
    Setting(
        "checkpoints_keep",
        values.positive_count,
        "Newest checkpoints kept of each job; artifacts always are",
        env="SIMPLETUNER_CHECKPOINTS_KEEP",
        default=3,
    ),
    Setting(
        "job_storage_gb",
        values.positive_count,
        "What one job may have stored at a time",
        env="SIMPLETUNER_JOB_STORAGE_GB",
        default=2048,
    ),
    Setting(
        "data_storage_gb",
        values.positive_count,
        "What all datasets together may take",
        env="SIMPLETUNER_DATA_STORAGE_GB",
        default=2048,
    ),
    Setting(
        "jobs_keep_days",
        values.days,
        "Days after its end that a job keeps logs, metrics, checkpoints and artifacts; without it, for ever",
        env="SIMPLETUNER_JOBS_KEEP_DAYS",
    ),
    Setting(
        "object_grace_s",
        values.seconds,
        "How long uploaded files wait for the manifest that names them",
        env="SIMPLETUNER_OBJECT_GRACE",
        default=3600.0,
    ),
    Setting(
        "require_approval",
        values.boolean,
        "Jobs of tokens without queue.approve wait for an approval",
        env="SIMPLETUNER_REQUIRE_APPROVAL",
        default=False,
    ),
    Setting(
        "public_url",
        values.url,
        "Where workers and people reach this server (default: what they called)",
        env="SIMPLETUNER_PUBLIC_URL",
    ),
    Setting(
        "metrics_public",
        values.boolean,
        "Serve /metrics without a token",
        env="SIMPLETUNER_METRICS_PUBLIC",
        default=False,
    ),
    Setting(
        "lang",
        values.language,
        "Language of messages: en, pt-BR, hi, zh or ja (default: that of the machine)",
        env="SIMPLETUNER_LANG",
    ),
    Setting(
        "open",
        values.boolean,
        "Open the console in a browser, where there is a screen",
        ("--open",),
        "SIMPLETUNER_OPEN",
        False,
        None,
        "switch",
    ),
)

WORKER = (
    Setting(
        "orchestrator_url",
        values.url,
        "Orchestrator panel URL (or SIMPLETUNER_ORCHESTRATOR_URL)",
        ("--orchestrator-url",),
        "SIMPLETUNER_ORCHESTRATOR_URL",
        None,
        "URL",
    ),
    Setting(
        "worker_token",
        values.text,
        "Authentication token (or SIMPLETUNER_WORKER_TOKEN)",
        ("--worker-token",),
        "SIMPLETUNER_WORKER_TOKEN",
        None,
        "TOKEN",
        secret=True,
    ),
    Setting(
        "name",
        values.text,
        "Worker name (default: hostname)",
        ("--name",),
        "SIMPLETUNER_WORKER_NAME",
        None,
        "NAME",
    ),
    Setting(
        "persistent",
        values.boolean,
        "Stay online between jobs (default: ephemeral)",
        ("--persistent",),
        "SIMPLETUNER_WORKER_PERSISTENT",
        False,
        None,
        "switch",
    ),
    VERBOSE,
    Setting(
        "worker_token_file",
        values.path,
        "Read the token from this file, again when it was rotated; - reads it from standard input",
        ("--worker-token-file",),
        "SIMPLETUNER_WORKER_TOKEN_FILE",
        None,
        "FILE",
    ),
    SSL_FINGERPRINT,
    CA_CERT,
    SSL_NO_VERIFY,
    Setting(
        "gpus",
        values.text,
        "Use these GPUs only: indices or UUIDs, with commas",
        ("--gpus",),
        "SIMPLETUNER_WORKER_GPUS",
        None,
        "LIST",
    ),
    Setting(
        "label",
        values.pairs,
        "Report a label; what the admin set wins; may be repeated",
        ("--label",),
        "SIMPLETUNER_WORKER_LABELS",
        {},
        "KEY=VALUE",
        "append",
    ),
    Setting(
        "work_dir",
        values.path,
        "Where jobs run and reports wait for delivery",
        ("--work-dir",),
        "SIMPLETUNER_WORK_DIR",
        None,
        "DIR",
    ),
    Setting(
        "trainer_python",
        values.path,
        "Python of the environment the trainer is installed in",
        ("--trainer-python",),
        "SIMPLETUNER_TRAINER_PYTHON",
        None,
        "PATH",
    ),
    Setting(
        "max_jobs",
        values.jobs_at_once,
        "Jobs to run at once, or auto for one per GPU (default: 1)",
        ("--max-jobs",),
        "SIMPLETUNER_MAX_JOBS",
        1,
        "N",
    ),
    Setting(
        "data_cache_dir",
        values.path,
        "Where datasets are kept between jobs (default: data-cache in the work dir)",
        ("--data-cache-dir",),
        "SIMPLETUNER_DATA_CACHE_DIR",
        None,
        "DIR",
    ),
    Setting(
        "data_cache_gb",
        values.gigabytes,
        "How much it may hold (default: four fifths of what is free, at most 100); 0 takes no job with datasets",
        ("--data-cache-gb",),
        "SIMPLETUNER_DATA_CACHE_GB",
        None,
        "GB",
    ),
    Setting(
        "upload_limit_mbps",
        values.megabits,
        "Send checkpoints and results with at most so many megabits a second (default: no limit)",
        ("--upload-limit-mbps",),
        "SIMPLETUNER_UPLOAD_LIMIT_MBPS",
        None,
        "MBPS",
    ),
    Setting(
        "shutdown_grace",
        values.seconds,
        "From SIGTERM until it must be gone: with 6 s or more a checkpoint is saved first (default: 20s)",
        ("--shutdown-grace",),
        "SIMPLETUNER_SHUTDOWN_GRACE",
        20.0,
        "TIME",
    ),
    Setting(
        "max_log_mb",
        values.log_megabytes,
        "Send at most so many MiB of what one attempt prints; of more, the beginning and the end (default: 1024)",
        ("--max-log-mb",),
        "SIMPLETUNER_MAX_LOG_MB",
        1024,
        "MIB",
    ),
    LOG_FORMAT,
    Setting(
        "gpu_inventory",
        values.text,
        "Declares the accelerators where detection cannot: JSON or @file",
        env="SIMPLETUNER_GPU_INVENTORY",
    ),
)

CLIENT = (
    Setting(
        "url",
        values.url,
        "Orchestrator to talk to (or SIMPLETUNER_URL)",
        ("--url",),
        "SIMPLETUNER_URL",
        None,
        "URL",
    ),
    Setting(
        "api_token",
        values.text,
        "API token (SIMPLETUNER_API_TOKEN)",
        env="SIMPLETUNER_API_TOKEN",
        secret=True,
    ),
    SSL_FINGERPRINT,
    CA_CERT,
    SSL_NO_VERIFY,
    DATA_DIR,
)

GROUPS = {"server": SERVER, "worker": WORKER, "client": CLIENT}
TOKENS = ("worker_token", "api_token", "admin_token")


class Settled(NamedTuple):
    value: Any
    source: Source


def config_home(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if base else Path.home() / ".config") / "simpletuner"


def settle(
    group: str, args: argparse.Namespace, environ: Mapping[str, str] = os.environ
) -> tuple[dict[str, Settled], list[str]]:
    """Every setting of the group with its value and where it came from, and notes for the user."""
    files = _tables(group, getattr(args, "config_file", None), environ)
    notes: list[str] = []
    settled = {row.name: _settle_one(row, args, environ, files, notes) for row in GROUPS[group]}
    return settled, notes


def apply(group: str, args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Writes the values into the namespace, their sources into `args.sources`; gives the notes."""
    settled, notes = settle(group, args, environ)
    for name, found in settled.items():
        setattr(args, name, found.value)
    args.sources = {name: found.source for name, found in settled.items()}
    return notes


def _settle_one(
    row: Setting,
    args: argparse.Namespace,
    environ: Mapping[str, str],
    files: list[tuple[str, dict[str, Any]]],
    notes: list[str],
) -> Settled:
    for given, source in _candidates(row, args, environ, files):
        return Settled(_parsed(row, given, source, notes), source)
    default = values.path(row.default) if row.parse is values.path and row.default else row.default
    return Settled(default, Source(Rank.DEFAULT, _("default")))


def _candidates(
    row: Setting,
    args: argparse.Namespace,
    environ: Mapping[str, str],
    files: list[tuple[str, dict[str, Any]]],
) -> Iterable[tuple[Any, Source]]:
    """What was given, strongest first."""
    flag = getattr(args, row.name, None)
    if flag is not None:
        yield flag, Source(Rank.FLAG, _("flag %(name)s", name=row.flags[-1] if row.flags else row.name))
    if row.name == "worker_token" and HIDDEN_TOKEN in environ:
        yield environ[HIDDEN_TOKEN], Source(Rank.FLAG, _("flag %(name)s", name="--worker-token"))
    if row.env and row.env in environ and (environ[row.env] != "" or row.parse is values.boolean):
        yield environ[row.env], Source(Rank.ENVIRONMENT, _("environment %(name)s", name=row.env))
    for where, table in files:
        if row.name in table:
            yield table[row.name], Source(Rank.FILE, _("file %(path)s", path=where))


def _parsed(row: Setting, given: Any, source: Source, notes: list[str]) -> Any:
    if isinstance(given, bool):
        given = "true" if given else "false"
    if isinstance(given, dict):
        given = [f"{key}={value}" for key, value in given.items()]
    given = [str(item) for item in given] if isinstance(given, list) else str(given)
    if row.action == "append" and isinstance(given, str):
        given = [given]
    if row.name in TOKENS and isinstance(given, str) and given != given.strip():
        notes.append(f"note: whitespace around the token was taken off ({source.where})")
    try:
        return row.parse(given)
    except ValueError as error:
        shown = "" if row.secret else f", got '{given if isinstance(given, str) else ','.join(given)}'"
        raise usage(
            _("%(where)s has a value that cannot be used", where=source.where),
            f"{error}{shown}",
            "simpletuner --help",
        ) from None


def _tables(group: str, chosen: str | None, environ: Mapping[str, str]) -> list[tuple[str, dict[str, Any]]]:
    usual = [config_home(environ) / "config.toml", SYSTEM_FILE]
    candidates = [Path(chosen).expanduser()] if chosen else usual
    found = []
    for file in candidates:
        table = _read_table(file, group, required=chosen is not None)
        if table is not None:
            found.append((str(file), table))
    return found


def _read_table(file: Path, group: str, *, required: bool) -> dict[str, Any] | None:
    try:
        with file.open("rb") as stream:
            document = tomllib.load(stream)
    except (FileNotFoundError, NotADirectoryError):
        if required:
            raise _unreadable(file, _("there is no such file")) from None
        return None
    except OSError as error:
        raise _unreadable(file, error.strerror or str(error)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _unreadable(file, str(error)) from None
    table = document.get(group, {})
    if not isinstance(table, dict):
        raise _unreadable(file, _("[%(group)s] is not a table", group=group))
    table = {key.replace("-", "_"): value for key, value in table.items()}
    unknown = sorted(set(table) - {row.name for row in GROUPS[group]})
    if unknown:
        raise _unreadable(file, _("[%(group)s] has no setting '%(name)s'", group=group, name=unknown[0]))
    return table


def _unreadable(file: Path, why: str) -> CliError:
    return usage(
        _("cannot use the settings file %(file)s", file=file),
        why,
        _("mend the file, or name another with --config FILE"),
    )
