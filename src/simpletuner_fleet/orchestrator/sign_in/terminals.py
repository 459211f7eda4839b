"""Terminals that wait for a person to let them in: each shows a short code, which the person compares in a browser.

Only memory knows of them. After a restart, or with another leader, a terminal asks again.
"""

import asyncio
import hmac
import secrets
from collections.abc import Callable

from msgspec import Struct

from simpletuner_fleet.core.errors import NotFound, TooManyRequests
from simpletuner_fleet.core.people import tokens

LIFE_S = 600.0
POLL_S = 2.0
MOST_WAITING = 5_000
MOST_PER_ADDRESS = 20
LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
"""No vowels, so that no code is a word, and nothing that looks like a digit."""
CODE_LETTERS = 8
NAME_CHARS = 64


class WaitingTerminal(Struct, kw_only=True):
    code: str
    """What terminal and browser both show."""
    secret_hash: str
    name: str
    """What the terminal calls itself."""
    ip: str
    address: str
    """Whom it counts for."""
    expires_at: float
    granted_to: str = ""
    """The user who let it in."""
    is_refused: bool = False
    token: str = ""
    """What it was given; the answer may be asked for again."""


class Terminals:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._waiting: dict[str, WaitingTerminal] = {}
        self.giving = asyncio.Lock()
        """Held while a token is made: of two questions at once one makes it."""

    def ask(self, name: str, ip: str, address: str) -> tuple[WaitingTerminal, str]:
        """Returns what waits now, and the secret with which the terminal asks for its answer."""
        self._forget_old()
        mine = [one for one in self._waiting.values() if one.address == address]
        if len(mine) >= MOST_PER_ADDRESS or len(self._waiting) >= MOST_WAITING:
            raise TooManyRequests(min(one.expires_at for one in self._waiting.values()) - self._now())
        secret = tokens.make(tokens.ONE_TIME, secrets.token_bytes(tokens.SECRET_BYTES))
        letters = "".join(secrets.choice(LETTERS) for _ in range(CODE_LETTERS))
        plain = "".join(char for char in name if char.isprintable()).strip()[:NAME_CHARS]
        terminal = WaitingTerminal(
            code=f"{letters[:4]}-{letters[4:]}",
            secret_hash=tokens.hashed(secret),
            name=plain or "a terminal",
            ip=ip,
            address=address,
            expires_at=self._now() + LIFE_S,
        )
        self._waiting[terminal.code] = terminal
        return terminal, secret

    def look(self, code: str) -> WaitingTerminal:
        """Returns the terminal that shows this code and was not answered yet."""
        self._forget_old()
        letters = "".join(char for char in code.upper() if char.isalnum())
        terminal = self._waiting.get(f"{letters[:4]}-{letters[4:]}")
        if terminal is None or terminal.granted_to or terminal.is_refused:
            raise NotFound(
                "No terminal is waiting with this code.",
                next_step="Compare the code with the terminal's, or run 'simpletuner login --web' again.",
            )
        return terminal

    def answer(self, code: str, user_id: str, *, allow: bool) -> WaitingTerminal:
        terminal = self.look(code)
        terminal.granted_to, terminal.is_refused = (user_id, False) if allow else ("", True)
        return terminal

    def claimed(self, secret: str) -> WaitingTerminal:
        """Returns the terminal that holds this secret."""
        self._forget_old()
        hashed = tokens.hashed(secret)
        for terminal in self._waiting.values():
            if hmac.compare_digest(terminal.secret_hash, hashed) and not terminal.is_refused:
                return terminal
        raise NotFound(
            "This log-in was refused or took too long.", next_step="Run 'simpletuner login --web' again."
        )

    def _forget_old(self) -> None:
        now = self._now()
        while self._waiting and next(iter(self._waiting.values())).expires_at <= now:
            del self._waiting[next(iter(self._waiting))]
