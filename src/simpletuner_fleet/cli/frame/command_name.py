"""Finds the name this program was called by: `simpletuner`, or `simpletuner-fleet` beside a trainer."""

import re
import sys
from pathlib import Path

SHORT, ALWAYS = "simpletuner", "simpletuner-fleet"
OURS = re.compile(
    r"(?<![\w./-])simpletuner (?=(?:server|worker|workers|jobs|pools|machines|offers|configs|secrets|data|audit|tokens|"
    r"users|roles|sign-in|teams|quotas|prices|limits|usage|approvals|notifications|webhooks|backup|service|mcp|status|"
    r"doctor|login|logout|whoami|demo|version|completion|COMMAND|--help)\b)"
)


def command_name() -> str:
    return ALWAYS if Path(sys.argv[0]).name == ALWAYS else SHORT


def as_called(text: str) -> str:
    """Returns the text with its commands written so that the reader can paste them."""
    return OURS.sub(f"{ALWAYS} ", text) if command_name() == ALWAYS else text
