"""Reads the cookies that the browser sent."""

from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie


def cookies_of(headers: Mapping[str, str]) -> dict[str, str]:
    try:
        return {name: morsel.value for name, morsel in SimpleCookie(headers.get("cookie", "")).items()}
    except CookieError:
        return {}
