"""Names, sets, reads and deletes the session cookie."""

from simpletuner_fleet.core.people.accounts import SESSION_LIFE_S

COOKIE = "simpletuner_session"
SECURE_COOKIE = f"__Host-{COOKIE}"
"""Under TLS the prefix keeps a neighbour under the same domain, and plain HTTP, from planting one."""


SIGN_IN_COOKIE = "simpletuner_sign_in"
"""Goes along while somebody is away at a provider."""
SIGN_IN_LIFE_S = 600


def cookie_name(secure: bool, name: str = COOKIE) -> str:
    return f"__Host-{name}" if secure else name


def session_cookie(secret: str, secure: bool) -> str:
    return _cookie(COOKIE, secret, int(SESSION_LIFE_S), secure)


def no_session_cookie(secure: bool) -> str:
    return _cookie(COOKIE, "", 0, secure)


def sign_in_cookie(sealed: str, secure: bool) -> str:
    return _cookie(SIGN_IN_COOKIE, sealed, SIGN_IN_LIFE_S, secure)


def no_sign_in_cookie(secure: bool) -> str:
    return _cookie(SIGN_IN_COOKIE, "", 0, secure)


def _cookie(name: str, value: str, max_age_s: int, secure: bool) -> str:
    lock = "; Secure" if secure else ""
    return f"{cookie_name(secure, name)}={value}; Path=/; Max-Age={max_age_s}; HttpOnly; SameSite=Lax{lock}"


def session_secret(cookie_header: str | None, secure: bool) -> str | None:
    return _only(cookie_header, cookie_name(secure))


def sign_in_secret(cookie_header: str | None, secure: bool) -> str | None:
    return _only(cookie_header, cookie_name(secure, SIGN_IN_COOKIE))


def _only(cookie_header: str | None, wanted: str) -> str | None:
    """Returns the cookie, or None unless there is exactly one: of two, one was planted."""
    secrets = [
        value
        for name, _, value in (part.strip().partition("=") for part in (cookie_header or "").split(";"))
        if name == wanted
    ]
    return secrets[0] or None if len(secrets) == 1 else None
