"""Builds the commands that join a machine, ready to paste, with every choice that was made for the worker."""

import shlex
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from urllib.parse import urlsplit

from msgspec import Struct

from simpletuner_fleet import __version__
from simpletuner_fleet.client.trust import is_loopback
from simpletuner_fleet.core.workers.worker import Worker, WorkerType

WHEEL = f"./simpletuner_fleet-{__version__}-py3-none-any.whl"
IMAGE = "python:3.12-slim"
"""Any image with Python will do; a trainer's own image is the better one."""
DISTRIBUTION = "simpletuner-fleet"
PROGRAM = (DISTRIBUTION, "worker")
"""By the name that is ours alone: a GPU machine may have the trainer's `simpletuner`, too."""
TOKEN_VARIABLE = "SIMPLETUNER_WORKER_TOKEN"


class ConnectionCommands(Struct, frozen=True, kw_only=True):
    uv: str
    pip: str
    systemd: str
    container: str
    environment: str
    """Lines of NAME=value, for clouds that take them as a block."""


@cache
def package() -> str:
    """Returns what pip installs on the GPU machine; a server that was installed from a file names that file."""
    try:
        from_file = distribution(DISTRIBUTION).read_text("direct_url.json")  # PEP 610
    except PackageNotFoundError:
        from_file = None
    return WHEEL if from_file else f"{DISTRIBUTION}=={__version__}"


def connection_command(worker: Worker, token: str, url: str, fingerprint: str | None) -> str:
    words = [*PROGRAM, "--orchestrator-url", url, "--worker-token", token]
    return shlex.join([*words, *(word for option in _choices(worker, url, fingerprint) for word in option)])


def connection_commands(worker: Worker, token: str, url: str, fingerprint: str | None) -> ConnectionCommands:
    target = ("--orchestrator-url", url)
    choices = _choices(worker, url, fingerprint)
    options = (target, *choices)
    given = f"{TOKEN_VARIABLE}={shlex.quote(token)}"  # an environment is its user's to see, arguments are everybody's
    variables = _variables(worker, url, fingerprint)
    return ConnectionCommands(
        uv=f"{given} {_lines([('uvx', '--from', package(), *PROGRAM), *options])}",
        pip=f"{shlex.join(['python3', '-m', 'pip', 'install', package()])} && \\\n{given} {_lines([PROGRAM, *options])}",
        systemd=_service(token, [target, *choices]),
        container=_container(token, variables),
        environment="\n".join(
            f"{name}={value}" for name, value in (variables | {TOKEN_VARIABLE: token}).items()
        ),
    )


def _service(token: str, options: list[tuple[str, ...]]) -> str:
    """Returns the command that installs a service.

    The token goes in by the standard input: a command line is visible to every user of the machine.
    """
    install = ["service", "install", "worker", "--worker-token-file", "-"]
    command = _lines([install, *options])
    return f'printf "%s\\n" {shlex.quote(token)} | sudo "$(command -v simpletuner-fleet)" {command}'


def _container(token: str, variables: dict[str, str]) -> str:
    passed = [("-e", f"{name}={value}") for name, value in variables.items()]
    start = f"pip install --quiet {package()} && exec {' '.join(PROGRAM)}"
    run = ["docker", "run", "--rm", "--init", "--gpus", "all", "--ipc", "host", "-e", TOKEN_VARIABLE]
    beside = ' \\\n  -v "$PWD":/wheel:ro -w /wheel' if package() == WHEEL else ""
    head, tail = _lines([run]), _lines([*passed, [IMAGE, "sh", "-c", start]])
    return f"{TOKEN_VARIABLE}={shlex.quote(token)} {head}{beside} \\\n  {tail}"


def _choices(worker: Worker, url: str, fingerprint: str | None) -> list[tuple[str, ...]]:
    chosen: list[tuple[str, ...]] = [("--name", worker.name)]
    if worker.chosen_type is WorkerType.PERSISTENT:
        chosen.append(("--persistent",))
    if fingerprint:
        chosen.append(("--ssl-fingerprint", fingerprint))
    if _needs_consent(url):
        chosen.append(("--plain-http",))
    return chosen


def _variables(worker: Worker, url: str, fingerprint: str | None) -> dict[str, str]:
    variables = {"SIMPLETUNER_ORCHESTRATOR_URL": url, "SIMPLETUNER_WORKER_NAME": worker.name}
    if worker.chosen_type is not None:
        persistent = worker.chosen_type is WorkerType.PERSISTENT
        variables["SIMPLETUNER_WORKER_PERSISTENT"] = "true" if persistent else "false"
    if fingerprint:
        variables["SIMPLETUNER_SSL_FINGERPRINT"] = fingerprint
    if _needs_consent(url):
        variables["SIMPLETUNER_PLAIN_HTTP"] = "true"
    return variables


def _needs_consent(url: str) -> bool:
    """Tells whether the URL is plain HTTP on the network.

    Whoever started the server so has decided it for its workers, too.
    """
    target = urlsplit(url)
    return target.scheme == "http" and not is_loopback(target.hostname or "")


def _lines(options: Iterable[Sequence[str]]) -> str:
    """Writes one option per line, as a shell reads them."""
    return " \\\n  ".join(shlex.join(option) for option in options)
