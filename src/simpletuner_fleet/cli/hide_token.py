"""A token given on the command line is visible to every user of the machine: take it off at once."""

import os
import sys
from collections.abc import Mapping

from simpletuner_fleet.cli.settings import HIDDEN_TOKEN

FLAG = "--worker-token"


def without_token(arguments: list[str]) -> tuple[list[str], str | None]:
    """The arguments without the flag, and the token that was given last."""
    kept: list[str] = []
    token: str | None = None
    rest = iter(arguments)
    for word in rest:
        if word == "--":
            return [*kept, word, *rest], token
        if word == FLAG:
            value = next(rest, None)
            if value is None:
                return arguments, None
            token = value
        elif word.startswith(FLAG + "="):
            token = word.partition("=")[2]
        else:
            kept.append(word)
    return kept, token


def hide_token(arguments: list[str], environ: Mapping[str, str]) -> None:
    """Starts this program again without the flag; returns only if there is none to hide."""
    kept, token = without_token(arguments)
    if token is None or not sys.executable:
        return
    interpreter = sys.orig_argv[: len(sys.orig_argv) - len(arguments)]
    os.execve(sys.executable, [*interpreter, *kept], {**environ, HIDDEN_TOKEN: token})


def forget_tokens(*names: str) -> None:
    """So that no child inherits them, nor finds them in the memory of its parent."""
    for name in names:
        os.environ.pop(name, None)
    from simpletuner_fleet.agent.guard.environment_block import (
        erase,  # brings ctypes, which only the two programs need
    )

    erase(names)
