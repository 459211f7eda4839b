"""The session cookie: how it is named, set, read and taken away."""

from simpletuner_fleet.core.people.accounts import SESSION_LIFE_S

COOKIE = "simpletuner_session"
SECURE_COOKIE = f"__Host-{COOKIE}"
"""Under TLS the prefix keeps a neighbour under the same domain, and plain HTTP, from planting one."""


def cookie_name(secure: bool) -> str:
    return SECURE_COOKIE if secure else COOKIE


def session_cookie(secret: str, secure: bool) -> str:
    return _cookie(secret, int(SESSION_LIFE_S), secure)


def no_session_cookie(secure: bool) -> str:
    return _cookie("", 0, secure)


def _cookie(value: str, max_age_s: int, secure: bool) -> str:
    lock = "; Secure" if secure else ""
    return f"{cookie_name(secure)}={value}; Path=/; Max-Age={max_age_s}; HttpOnly; SameSite=Lax{lock}"


def session_secret(cookie_header: str | None, secure: bool) -> str | None:
    """Returns None unless there is exactly one: of two, one was planted."""
    secrets = [
        value
        for name, _, value in (part.strip().partition("=") for part in (cookie_header or "").split(";"))
        if name == cookie_name(secure)
    ]
    return secrets[0] or None if len(secrets) == 1 else None
