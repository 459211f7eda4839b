"""Runs `simpletuner mcp`: reads messages from standard input and writes the answers to standard output."""

import argparse
import sys
import traceback
from typing import BinaryIO

import msgspec

from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.cli.mcp.limits import HOUR_S, SpendLimits
from simpletuner_fleet.cli.mcp.protocol import PARSE_ERROR, RpcError, ToolBox, answer, refusal
from simpletuner_fleet.cli.mcp.tools import FleetTools
from simpletuner_fleet.client.fleet import FleetClient
from simpletuner_fleet.languages import speak

MAX_LINE_BYTES = 4 * 1024 * 1024
CONNECTION = ("url", "ssl_fingerprint", "ca_cert", "ssl_no_verify", "plain_http", "data_dir", "config_file")


def serve(args: argparse.Namespace) -> int:
    """Runs until standard input ends. Nothing but messages goes to standard output."""
    speak({"SIMPLETUNER_LANG": "en"})
    limits = SpendLimits(
        submit=args.allow_submit,
        max_priority=args.max_priority,
        max_hours=args.max_time / HOUR_S,
        max_gpus=args.max_gpus,
        max_jobs=args.max_jobs,
        overrides=frozenset(args.allow_override),
    )
    given = {name: getattr(args, name, None) for name in CONNECTION}
    with FleetClient(**given) as fleet:
        talk(sys.stdin.buffer, sys.stdout.buffer, FleetTools(fleet, limits))
    return ExitCode.OK


def talk(source: BinaryIO, sink: BinaryIO, tools: ToolBox) -> None:
    while line := source.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            _skip_line(source, line)
            said = refusal(None, RpcError(PARSE_ERROR, f"a message has at most {MAX_LINE_BYTES} bytes"))
        elif not line.strip():
            continue
        else:
            answered = answer(line, tools, _complain)
            if answered is None:
                continue
            said = answered
        sink.write(msgspec.json.encode(said) + b"\n")
        sink.flush()


def _skip_line(source: BinaryIO, line: bytes) -> None:
    while line and not line.endswith(b"\n"):
        line = source.readline(MAX_LINE_BYTES)


def _complain(error: BaseException) -> None:
    traceback.print_exception(error, file=sys.stderr)
