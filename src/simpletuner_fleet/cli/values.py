"""How a word from a flag, a variable or a file becomes a value. Each raises ValueError with a sentence."""

import re
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from simpletuner_fleet.client.trust import read_fingerprint
from simpletuner_fleet.languages import _, known

YES, NO = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off", ""})
UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
MOST_LOG_MIB = 2000
"""What the orchestrator takes of one log."""
LANGUAGES = ("en", "pt-BR", "hi", "zh", "ja")


def boolean(text: str) -> bool:
    word = text.strip().lower()
    if word in YES:
        return True
    if word in NO:
        return False
    raise ValueError(_("expected 1, true, yes or on, or 0, false, no or off"))


def text(given: str) -> str:
    if not given.strip():
        raise ValueError(_("expected some text"))
    return given.strip()


def path(given: str) -> str:
    return str(Path(text(given)).expanduser())


def port(given: str) -> int:
    number = whole(given)
    if not 0 <= number <= 65535:
        raise ValueError(_("a port is between 0 and 65535"))
    return number


def whole(given: str) -> int:
    try:
        return int(given.strip())
    except ValueError:
        raise ValueError(_("expected a whole number")) from None


def count(given: str) -> int:
    number = whole(given)
    if number < 0:
        raise ValueError(_("expected 0 or more"))
    return number


def positive_count(given: str) -> int:
    number = whole(given)
    if number < 1:
        raise ValueError(_("expected 1 or more"))
    return number


def jobs_at_once(given: str) -> int | str:
    return "auto" if given.strip().lower() == "auto" else positive_count(given)


def megabits(given: str) -> float:
    try:
        number = float(given.strip())
    except ValueError:
        raise ValueError(_("expected a number of megabits a second, such as 100")) from None
    if not 0.01 <= number <= 1_000_000:
        raise ValueError(_("expected between 0.01 and 1000000 megabits a second"))
    return number


def gigabytes(given: str) -> float:
    try:
        number = float(given.strip())
    except ValueError:
        raise ValueError(_("expected a number of gigabytes, such as 200")) from None
    if not 0 <= number <= 1_000_000:
        raise ValueError(_("expected between 0 and 1000000 gigabytes"))
    return number


def log_megabytes(given: str) -> int:
    number = positive_count(given)
    if number > MOST_LOG_MIB:
        raise ValueError(_("expected %(most)s or less", most=MOST_LOG_MIB))
    return number


def days(given: str) -> float:
    try:
        number = float(given.strip())
    except ValueError:
        raise ValueError(_("expected a number of days, such as 90")) from None
    if not 0.001 <= number <= 100_000:
        raise ValueError(_("expected between 0.001 and 100000 days"))
    return number


def seconds(given: str) -> float:
    """`90`, `1.5m`, `2h`, `1h30m`."""
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", given.strip().lower())
    if not parts or "".join(number + unit for number, unit in parts) != re.sub(r"\s", "", given.lower()):
        raise ValueError(_("expected a time such as 90, 15m, 2h or 1h30m"))
    total = sum(float(number) * UNITS_S[unit] for number, unit in parts)
    if total <= 0:
        raise ValueError(_("expected more than 0 seconds"))
    return total


def moment(given: str) -> str:
    """A span such as `10m` becomes seconds ago; a time stays as it is."""
    try:
        return f"{seconds(given):.3f}"
    except ValueError:
        pass
    try:
        datetime.fromisoformat(given.strip())
    except ValueError:
        raise ValueError(_("expected a span such as 10m, or a time such as 2026-01-31T12:00:00Z")) from None
    return given.strip()


def url(given: str) -> str:
    address = urlsplit(given.strip())
    try:
        port_is_fine = address.port is None or address.port > 0
    except ValueError:
        port_is_fine = False
    if address.scheme not in ("http", "https") or not address.hostname or not port_is_fine:
        raise ValueError(_("expected http://HOST:PORT or https://HOST:PORT"))
    if address.username or address.password or address.query or address.fragment:
        raise ValueError(_("expected an address alone: no user, password, '?' or '#' in it"))
    return given.strip().rstrip("/")


def fingerprint(given: str) -> str:
    return read_fingerprint(given)


def log_format(given: str) -> str:
    return one_of(given, ("text", "json"))


def language(given: str) -> str:
    return known(given) or one_of(given, LANGUAGES)


def one_of(given: str, allowed: tuple[str, ...]) -> str:
    if given.strip() not in allowed:
        raise ValueError(_("expected one of %(allowed)s", allowed=", ".join(allowed)))
    return given.strip()


def words(given: list[str]) -> list[str]:
    """Repeated, or parted by commas, or both."""
    return [word.strip() for item in given for word in item.split(",") if word.strip()]


def pairs(given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words(given):
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise ValueError(_("expected KEY=VALUE, got '%(item)s'", item=word))
        found[key.strip()] = value.strip()
    return found
