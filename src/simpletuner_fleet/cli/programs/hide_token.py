"""Removes a token from the command line at once, where every user of the machine could see it."""

import os
import sys
from collections.abc import Mapping

from simpletuner_fleet.client.resolve_settings import HIDDEN_TOKEN

FLAG = "--worker-token"


def without_token(arguments: list[str]) -> tuple[list[str], str | None]:
    """Returns the arguments without the flag, and the token that was given last."""
    remaining: list[str] = []
    token: str | None = None
    rest = iter(arguments)
    for word in rest:
        if word == "--":
            return [*remaining, word, *rest], token
        if word == FLAG:
            value = next(rest, None)
            if value is None:
                return arguments, None
            token = value
        elif word.startswith(FLAG + "="):
            token = word.partition("=")[2]
        else:
            remaining.append(word)
    return remaining, token


def hide_token(arguments: list[str], environ: Mapping[str, str]) -> None:
    """Starts this program again without the flag; returns only if there is no token to hide."""
    remaining, token = without_token(arguments)
    if token is None or not sys.executable:
        return
    interpreter = sys.orig_argv[: len(sys.orig_argv) - len(arguments)]
    os.execve(sys.executable, [*interpreter, *remaining], {**environ, HIDDEN_TOKEN: token})


def forget_tokens(*names: str) -> None:
    """Removes tokens, so that no child inherits them or finds them in the memory of its parent."""
    for name in names:
        os.environ.pop(name, None)
    from simpletuner_fleet.agent.guard.environment_block import (
        erase,  # brings ctypes, which only the two programs need
    )

    erase(names)
