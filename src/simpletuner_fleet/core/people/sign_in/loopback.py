"""Sends a browser back to the terminal on its own machine with a code, and checks that the terminal asked.

The terminal names a port alone, and the address is made here (RFC 8252): no request can send a code elsewhere. The code
is worth nothing without the verifier, which never leaves the terminal until then (RFC 7636, S256).
"""

import base64
import hashlib
import hmac
import re
from typing import Annotated

from msgspec import Meta, Struct

HOST = "127.0.0.1"
PATH = "/signed-in"
CODE_LIFE_S = 60.0
_VERIFIER = re.compile(r"[A-Za-z0-9._~-]{43,128}")
_ANSWER = re.compile(
    rf"{PATH}\?(?:code=(?P<code>[A-Za-z0-9_]{{1,128}})|error=access_denied)&state=(?P<state>[A-Za-z0-9_-]{{1,128}})"
)


class Loopback(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks for a terminal to be logged in by the browser on its own machine."""

    port: Annotated[int, Meta(ge=1024, le=65535)]
    """Where it listens, on 127.0.0.1."""
    challenge: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{43}$", max_length=43)]
    """The SHA-256 of its verifier, in base64url without padding."""
    state: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{43,128}$", max_length=128)]
    """What it knows its own answer by."""


class LoopbackAnswer(Struct, frozen=True):
    code: str
    """'' where the person said no."""


def challenge_of(verifier: str) -> str:
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def proves(verifier: str, challenge: str) -> bool:
    if not _VERIFIER.fullmatch(verifier):
        return False
    return hmac.compare_digest(challenge_of(verifier).encode(), challenge.encode())


def led_back(loopback: Loopback, code: str) -> str:
    """Returns the address that the browser is sent to; without a code it says that the person refused."""
    said = f"code={code}" if code else "error=access_denied"
    return f"http://{HOST}:{loopback.port}{PATH}?{said}&state={loopback.state}"


def answer_in(target: str, state: str) -> LoopbackAnswer | None:
    """Returns what a request to the terminal's own address says; None unless it is the answer to this very log-in."""
    said = _ANSWER.fullmatch(target)
    if said is None or not hmac.compare_digest(said["state"].encode(), state.encode()):
        return None
    return LoopbackAnswer(said["code"] or "")
