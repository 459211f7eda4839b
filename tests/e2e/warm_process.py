"""A Python that has loaded our code already and becomes the program that is asked for, in a process of its own.

To start a server costs 0.75 s of CPU, of which 0.6 s goes to loading modules; hundreds of stories start one. What is
forked here has its own session, environment, folder, output and arguments, and runs the command's own `main`. Only its
command line, as others see it, is this program's.
"""

import asyncio
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2

import simpletuner_fleet
from tests.whole_run.template_cache import keep_templates

NOT_LOADED = ("simpletuner_fleet.sim", "simpletuner_fleet.trainers.demo")
"""What no server and no worker loads."""
NOBODY = "http://127.0.0.1:1"


def load_everything() -> None:
    for module in pkgutil.walk_packages(simpletuner_fleet.__path__, f"{simpletuner_fleet.__name__}."):
        if not module.name.startswith(NOT_LOADED) and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    prepare_routes()
    if len(sys.argv) > 2:
        prepare_templates(Path(sys.argv[2]))
    asyncio.run(ask_nobody())
    # What is loaded stays shared: to look through it for garbage would copy it into every program.
    gc.collect()
    gc.freeze()


def prepare_routes() -> None:
    """Every server reads the types of its routes once, and remembers them by the type."""
    from simpletuner_fleet.http.application import ROUTES
    from simpletuner_fleet.http.edge.route_table import CompiledRoute
    from simpletuner_fleet.web import routes as web_routes

    for row in (*ROUTES, *web_routes.ROUTES):
        CompiledRoute(row)


def prepare_templates(folder: Path) -> None:
    """A server compiles a template when it shows the first page of it, which takes a quarter of a second for most."""
    from simpletuner_fleet.web.frame.environment import environment

    keep_templates(folder)
    for name in environment().list_templates():
        environment().get_template(name)


async def ask_nobody() -> None:
    """The client loads most of itself when it is made, and the rest when it first asks: a third of a worker's start."""
    async with httpx2.AsyncClient(trust_env=False) as client:
        with suppress(httpx2.ConnectError):
            await client.get(NOBODY)


def next_program(line: socket.socket) -> dict[str, Any]:
    """Answers what is asked until it is, after a fork, the program that was asked for."""
    asked_lines = line.makefile("rb")
    for asked in map(json.loads, asked_lines):
        if "poll" in asked:
            pid, status = os.waitpid(asked["poll"], os.WNOHANG)
            answer: object = os.waitstatus_to_exitcode(status) if pid else None
        else:
            if threading.active_count() != 1:
                raise RuntimeError("a module started a thread when it was loaded: a fork would lack it")
            answer = os.fork()
            if answer == 0:
                asked_lines.close()
                line.close()
                return dict(asked)
        line.sendall(json.dumps(answer).encode() + b"\n")
    sys.exit()


def become(asked: dict[str, Any]) -> None:
    os.setsid()
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    for number, log in ((1, asked["log"]), (2, asked["errors"])):
        output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.dup2(output, number)
        os.close(output)
    sys.orig_argv[:] = [sys.executable, *asked["words"]]
    sys.argv[:] = asked["words"]


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    load_everything()
    with socket.socket(fileno=int(sys.argv[1])) as own_line:
        program = next_program(own_line)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    become(program)
    from simpletuner_fleet.cli.front import main

    sys.exit(main())
