"""Defines the people who log in: their names, roles, passwords and sessions.

It holds rules only; the time is handed in.
"""

import unicodedata
from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.errors import Invalid, LastAdmin
from simpletuner_fleet.core.marks import N_
from simpletuner_fleet.core.people.common_passwords import is_common

LANGUAGES = ("en", "pt-BR", "hi", "zh-Hans", "ja")
SHORT_LANGUAGES = {"pt": "pt-BR", "zh": "zh-Hans"}
MAX_NAME_CHARS = 64
MIN_PASSWORD_CHARS = 10
MAX_PASSWORD_CHARS = 256
DAY_S = 86_400.0
SESSION_IDLE_S = 7 * DAY_S
SESSION_LIFE_S = 30 * DAY_S
SESSION_RENEWED_EVERY_S = 3_600.0
FRESH_LOGIN_S = 12 * 3_600.0
"""Within so long of a log-in its user may make tokens, users, links and secrets."""
FIRST_KEY_LIFE_S = 15 * 60.0
PERSONAL_KEY_LIFE_S = DAY_S
NAME_RULE = N_("A user name must have 1 to 64 printable characters and no leading or trailing spaces.")
PASSWORD_RULE = N_("A password must have 10 to 256 characters.")
TOO_EASY = N_("This password is too easy to guess.")


class Role(StrEnum):
    ADMIN = "admin"
    MEMBER = "member"
    VIEWER = "viewer"


class User(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    role: str
    """One of Role, or the name of a role of one's own."""
    created_at: float
    password_hash: str = ""
    """Argon2id in its usual text form; empty until the user has chosen a password."""
    language: str = ""
    """It is empty where the browser decides."""
    disabled_at: float | None = None
    last_login_at: float | None = None
    issuer: str = ""
    """Who vouches for this user; empty for one who logs in with a password of ours."""
    subject: str = ""
    """The issuer's own name for the user: both together are who it is."""
    shut_out: bool = False
    """Disabled because the provider gives no role any more, and until it does."""

    @property
    def can_log_in(self) -> bool:
        return self.disabled_at is None and bool(self.password_hash)


class Session(Struct, frozen=True, kw_only=True):
    """Represents one browser that is logged in; only the browser knows its secret."""

    token_hash: str
    user_id: str
    created_at: float
    seen_at: float
    """It is true to the hour: a look at a page need not be a write."""
    ip: str = ""
    issuer: str = ""
    """The provider that it began at, if any."""
    sid: str = ""
    """The provider's name for it."""
    id_token: str = ""
    """What the provider is shown when the user logs out there, too."""

    @property
    def ends_at(self) -> float:
        """Returns when it ends by itself, unless it is used before."""
        return min(self.seen_at + SESSION_IDLE_S, self.created_at + SESSION_LIFE_S)

    def good_at(self, now: float) -> bool:
        return now < self.ends_at

    def wants_renewal(self, now: float) -> bool:
        return now >= self.seen_at + SESSION_RENEWED_EVERY_S


class OneTimeKey(Struct, frozen=True, kw_only=True):
    """Lets whoever holds it choose a password, once; without a user it creates the first admin."""

    expires_at: float
    user_id: str | None = None
    for_leads: bool = False
    """Whoever had it made may give away what leads of teams hold: it stays good where its user comes to lead one."""

    def good_at(self, now: float) -> bool:
        return now < self.expires_at


def plain_name(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def checked_name(name: str) -> str:
    plain = plain_name(name)
    if not 1 <= len(plain) <= MAX_NAME_CHARS or not plain.isprintable() or plain != plain.strip():
        raise Invalid(NAME_RULE, path="$.name")
    return plain


def checked_language(language: str) -> str:
    language = SHORT_LANGUAGES.get(language, language)
    if language and language not in LANGUAGES:
        raise Invalid(
            f"There is no language '{language[:20]}'; there are {', '.join(LANGUAGES)}.", path="$.language"
        )
    return language


def plain_password(password: str) -> str:
    """Returns the password in one Unicode form, however the keyboard composed its characters."""
    return unicodedata.normalize("NFKC", password)


def checked_password(password: str, name: str) -> str:
    plain = plain_password(password)
    if not MIN_PASSWORD_CHARS <= len(plain) <= MAX_PASSWORD_CHARS:
        raise Invalid(PASSWORD_RULE, path="$.password")
    if plain.casefold() == name.casefold() or len(set(plain)) < 4 or is_common(plain, name):
        raise Invalid(TOO_EASY, path="$.password")
    return plain


def changed(
    user: User, others: Iterable[User], now: float, *, role: str | None = None, disabled: bool | None = None
) -> User:
    """Returns the user after an administrator's change. Raises LastAdmin where it would lock everybody out."""
    after = replace(user, role=role or user.role)
    if disabled is not None and disabled != (user.disabled_at is not None):
        after = replace(after, disabled_at=now if disabled else None)
    if disabled is not None:
        after = replace(after, shut_out=False)
    if _administers(user) and not _administers(after) and not any(map(_administers, others)):
        raise LastAdmin
    return after


def _administers(user: User) -> bool:
    return user.role == Role.ADMIN and user.can_log_in
