"""Keeps terminals that wait for a person to let them in.

A terminal without a browser shows a short code, which the person compares in a browser anywhere, and asks for its
answer. One with a browser beside it is told through that browser, with a code that works once and for this terminal
alone.

They are kept only in memory. After a restart, or with another leader, a terminal asks again.
"""

import asyncio
import hmac
import secrets
from collections.abc import Callable

from msgspec import Struct

from simpletuner_fleet.core.errors import NotFound, TooManyRequests
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.people.sign_in import loopback as loopbacks
from simpletuner_fleet.core.people.sign_in.loopback import Loopback

LIFE_S = 600.0
POLL_S = 2.0
MOST_WAITING = 5_000
MOST_PER_ADDRESS = 20
LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
"""No vowels, so that no code is a word, and nothing that looks like a digit."""
CODE_LETTERS = 8
NAME_CHARS = 64
DONE = "/login/terminal?done="


class WaitingTerminal(Struct, kw_only=True):
    code: str
    """What terminal and browser both show; for one that the browser leads back to, what its page is found by."""
    secret_hash: str
    """Of what it asks for its answer with; '' where the browser brings the answer."""
    loopback: Loopback | None = None
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
    """What it was given; the answer may be asked for again until it is used."""
    token_id: str = ""
    one_time_hash: str = ""
    """Of the code that the browser carries back."""
    redeem_until: float = 0.0


class Terminals:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._waiting: dict[str, WaitingTerminal] = {}
        self._exchanged: dict[str, WaitingTerminal] = {}
        """Those whose code was used, as long as somebody may come with it again."""
        self.giving = asyncio.Lock()
        """Held while a token is made: of two questions at once one makes it."""

    def ask(
        self, name: str, ip: str, address: str, loopback: Loopback | None = None
    ) -> tuple[WaitingTerminal, str]:
        """Returns the waiting terminal, and the secret with which it asks for its answer ('' with a `loopback`)."""
        self._forget_old()
        mine = [one for one in self._waiting.values() if one.address == address]
        if len(mine) >= MOST_PER_ADDRESS or len(self._waiting) >= MOST_WAITING:
            raise TooManyRequests(min(one.expires_at for one in self._waiting.values()) - self._now())
        # Nobody types or compares the code of one with a browser beside it, so it is one that nobody can guess.
        secret, code = ("", _one_time()) if loopback else (_one_time(), _short_code())
        plain = "".join(char for char in name if char.isprintable()).strip()[:NAME_CHARS]
        terminal = WaitingTerminal(
            code=code,
            secret_hash=tokens.hashed(secret) if secret else "",
            loopback=loopback,
            name=plain or "a terminal",
            ip=ip,
            address=address,
            expires_at=self._now() + LIFE_S,
        )
        self._waiting[terminal.code] = terminal
        return terminal, secret

    def look(self, code: str) -> WaitingTerminal:
        """Returns the terminal that shows this code, or whose browser brought it, and that has no answer yet."""
        self._forget_old()
        letters = "".join(char for char in code.upper() if char.isalnum())
        terminal = self._waiting.get(code) or self._waiting.get(f"{letters[:4]}-{letters[4:]}")
        if terminal is None or terminal.granted_to or terminal.is_refused:
            raise NotFound(
                "No terminal is waiting with this code.",
                next_step="Compare the code with the terminal's, or run 'simpletuner login' again.",
            )
        return terminal

    def answer(self, code: str, user_id: str, *, allow: bool) -> str:
        """Notes the answer, and returns where the browser goes: to our page, or back to the terminal on its machine."""
        terminal = self.look(code)
        terminal.granted_to, terminal.is_refused = (user_id, False) if allow else ("", True)
        if terminal.loopback is None:
            return f"{DONE}{'yes' if allow else 'no'}"
        one_time = _one_time() if allow else ""
        terminal.one_time_hash = tokens.hashed(one_time) if allow else ""
        terminal.redeem_until = self._now() + loopbacks.CODE_LIFE_S
        return loopbacks.led_back(terminal.loopback, one_time)

    def exchanged(self, one_time: str, verifier: str) -> WaitingTerminal:
        """Returns the terminal that this code was made for, and uses the code up, even where the verifier is wrong."""
        self._forget_old()
        hashed = tokens.hashed(one_time)
        terminal = next(
            (one for one in self._waiting.values() if hmac.compare_digest(one.one_time_hash, hashed)), None
        )
        if terminal is None or terminal.loopback is None:
            raise lost()
        self._exchanged[terminal.code] = self._waiting.pop(terminal.code)
        proven = loopbacks.proves(verifier, terminal.loopback.challenge)
        if not proven or self._now() >= terminal.redeem_until:
            raise lost()
        return terminal

    def replayed(self, one_time: str) -> WaitingTerminal | None:
        """Returns the terminal whose code this is, if it was used before: two have it, and one of them stole it."""
        self._forget_old()
        hashed = tokens.hashed(one_time)
        used = (one for one in self._exchanged.values() if hmac.compare_digest(one.one_time_hash, hashed))
        return next(used, None)

    def claimed(self, secret: str) -> WaitingTerminal:
        """Returns the terminal that holds this secret."""
        self._forget_old()
        hashed = tokens.hashed(secret)
        for terminal in self._waiting.values():
            if hmac.compare_digest(terminal.secret_hash, hashed) and not terminal.is_refused:
                return terminal
        raise lost()

    def _forget_old(self) -> None:
        now = self._now()
        for known in (self._waiting, self._exchanged):
            for code in [code for code, one in known.items() if one.expires_at <= now]:
                del known[code]


def _one_time() -> str:
    return tokens.make(tokens.ONE_TIME, secrets.token_bytes(tokens.SECRET_BYTES))


def _short_code() -> str:
    letters = "".join(secrets.choice(LETTERS) for _ in range(CODE_LETTERS))
    return f"{letters[:4]}-{letters[4:]}"


def lost() -> NotFound:
    return NotFound(
        "This log-in was refused, was used already, or took too long.",
        next_step="Run 'simpletuner login' again.",
    )
