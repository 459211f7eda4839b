"""Converts the text of a flag, a variable or a file into a value. Each function raises ValueError with a sentence."""

import math
import os
import re
from datetime import datetime
from ipaddress import IPv6Address, ip_network
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from simpletuner_fleet.core.mail_addresses import MAIL
from simpletuner_fleet.core.money.amounts import read_amount
from simpletuner_fleet.languages import _, known

YES, NO = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off", ""})
CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")
UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
MOST_WHOLE = 2**53 - 1
"""What JSON carries everywhere."""
MOST_DAYS = 100_000
"""From now on, and back, all of these are in a calendar."""
MOST_LOG_MIB, MOST_JOBS = 2000, 1024
"""What the orchestrator takes of one log, and of one worker at a time."""
COMPARISON = re.compile(r"([^<>=]+)((?:>=|<=|==|>|<)\s*\d[\d.]*)", re.ASCII)
LANGUAGES = ("en", "pt-BR", "hi", "zh", "ja")


def boolean(text: str) -> bool:
    word = text.strip().lower()
    if word in YES:
        return True
    if word in NO:
        return False
    raise ValueError(_("expected 1, true, yes or on, or 0, false, no or off"))


def text(raw: str) -> str:
    if not raw.strip():
        raise ValueError(_("expected some text"))
    return raw.strip()


def path(raw: str) -> str:
    return str(_expanded(text(raw)))


def _expanded(raw: str) -> Path:
    try:
        return Path(raw).expanduser()
    except RuntimeError:
        user = raw.partition("/")[0].removeprefix("~") or os.getuid()
        raise ValueError(_("there is no user '%(user)s' on this machine", user=user)) from None


def port(raw: str) -> int:
    number = whole(raw)
    if not 0 <= number <= 65535:
        raise ValueError(_("a port is between 0 and 65535"))
    return number


def host_and_port(raw: str) -> tuple[str, int]:
    """Reads HOST:PORT; an address that contains colons stands in brackets."""
    host, colon, number = text(raw).rpartition(":")
    if not colon or not number.isdecimal() or not 0 < int(number) <= 65535:
        raise ValueError(_("expected HOST:PORT"))
    return host.removeprefix("[").removesuffix("]"), int(number)


def whole(raw: str) -> int:
    try:
        number = int(raw.strip())
    except ValueError:
        raise ValueError(_("expected a whole number")) from None
    if abs(number) > MOST_WHOLE:
        raise ValueError(_("expected at most %(most)s", most=MOST_WHOLE))
    return number


def number(raw: str) -> float:
    """Reads any number but those that JSON cannot carry: infinities and NaN."""
    try:
        value = float(raw)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(_("expected a number"))
    return value


def count(raw: str) -> int:
    number = whole(raw)
    if number < 0:
        raise ValueError(_("expected 0 or more"))
    return number


def positive_count(raw: str) -> int:
    number = whole(raw)
    if number < 1:
        raise ValueError(_("expected 1 or more"))
    return number


def jobs_at_once(raw: str) -> int | str:
    if raw.strip().lower() == "auto":
        return "auto"
    number = positive_count(raw)
    if number > MOST_JOBS:
        raise ValueError(_("expected at most %(most)s", most=MOST_JOBS))
    return number


def megabits(raw: str) -> float:
    try:
        number = float(raw.strip())
    except ValueError:
        raise ValueError(_("expected a number of megabits a second, such as 100")) from None
    if not 0.01 <= number <= 1_000_000:
        raise ValueError(_("expected between 0.01 and 1000000 megabits a second"))
    return number


def gigabytes(raw: str) -> float:
    try:
        number = float(raw.strip())
    except ValueError:
        raise ValueError(_("expected a number of gigabytes, such as 200")) from None
    if not 0 <= number <= 1_000_000:
        raise ValueError(_("expected between 0 and 1000000 gigabytes"))
    return number


def money(raw: str) -> int:
    """Returns the amount in millionths of the currency's unit."""
    try:
        return read_amount(raw)
    except ValueError:
        raise ValueError(
            _("expected an amount such as 2.50, with at most six digits behind the point")
        ) from None


def log_megabytes(raw: str) -> int:
    number = positive_count(raw)
    if number > MOST_LOG_MIB:
        raise ValueError(_("expected %(most)s or less", most=MOST_LOG_MIB))
    return number


def days(raw: str) -> float:
    try:
        number = float(raw.strip())
    except ValueError:
        raise ValueError(_("expected a number of days, such as 90")) from None
    if not 0.001 <= number <= MOST_DAYS:
        raise ValueError(_("expected between 0.001 and 100000 days"))
    return number


def hours(raw: str) -> float:
    try:
        number = float(raw.strip())
    except ValueError:
        raise ValueError(_("expected a number of hours, such as 24")) from None
    if not 0 <= number <= 87_600:
        raise ValueError(_("expected between 0 and 87600 hours"))
    return number


def seconds(raw: str) -> float:
    """Reads a time such as `90`, `1.5m`, `2h` or `1h30m`."""
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", raw.strip().lower())
    if not parts or "".join(number + unit for number, unit in parts) != re.sub(r"\s", "", raw.lower()):
        raise ValueError(_("expected a time such as 90, 15m, 2h or 1h30m"))
    total = sum(float(number) * UNITS_S[unit] for number, unit in parts)
    if total <= 0:
        raise ValueError(_("expected more than 0 seconds"))
    if total > MOST_DAYS * UNITS_S["d"]:
        raise ValueError(_("expected at most %(most)s", most=f"{MOST_DAYS}d"))
    return total


def seconds_or_none(raw: str) -> float:
    """Reads a time as `seconds` does, or 0."""
    return 0.0 if raw.strip() == "0" else seconds(raw)


def money_or_none(raw: str) -> int | None:
    """Reads an amount, or `none`, which removes a limit."""
    return None if raw.strip().lower() == "none" else money(raw)


def moment(raw: str) -> str:
    """Converts a span such as `10m` into seconds; a time stays as it is."""
    try:
        return f"{seconds(raw):.3f}"
    except ValueError:
        pass
    try:
        datetime.fromisoformat(raw.strip())
    except ValueError:
        raise ValueError(_("expected a span such as 10m, or a time such as 2026-01-31T12:00:00Z")) from None
    return raw.strip()


def start_time(raw: str) -> str:
    """Returns the time as it was written. Raises ValueError where it is unclear which moment is meant."""
    text = raw.strip()
    if not CLOCK.fullmatch(text):
        try:
            whole = datetime.fromisoformat(text)
        except ValueError:
            whole = None
        if whole is None or "T" not in text.upper().replace(" ", "T"):
            raise ValueError(_("expected a time such as 22:00, 2026-01-31T22:00 or 2026-01-31T22:00:00Z"))
    return text


def start_time_or_none(raw: str) -> str:
    """Reads a start time, or `none`, which removes it."""
    return "" if raw.strip().lower() == "none" else start_time(raw)


def priority(raw: str) -> int | str:
    """Returns a number as an integer; a word stays as it is, for the server to interpret."""
    try:
        return int(raw)
    except ValueError:
        return text(raw)


def url(raw: str) -> str:
    address = _address(raw, ("http", "https"))
    if address is None:
        raise ValueError(_("expected http://HOST:PORT or https://HOST:PORT"))
    if address.username or address.password or address.query or address.fragment:
        raise ValueError(_("expected an address alone: no user, password, '?' or '#' in it"))
    return raw.strip().rstrip("/")


def _address(raw: str, schemes: tuple[str, ...]) -> SplitResult | None:
    """Returns the parts of an address; None where no connection could be made to it, whatever runs there."""
    try:
        address = urlsplit(raw.strip())
        host = address.hostname or ""
        host.encode("idna")  # fails where a part between two dots is empty, or too long for any name server
        if "[" in address.netloc:
            IPv6Address(host)
        port_is_fine = address.port is None or address.port > 0
    except ValueError:
        return None
    is_sound = address.scheme in schemes and host and port_is_fine and raw.strip().isprintable()
    return address if is_sound else None


def urls(raw: str) -> str:
    """Reads one address, or several separated by commas."""
    return ",".join(url(each) for each in raw.split(","))


def fingerprint(raw: str) -> str:
    """Accepts colons, blanks, capitals and a missing prefix. Raises ValueError if it is no SHA-256 at all."""
    digest = re.sub(r"[\s:]", "", raw.strip().lower().removeprefix("sha256:"))
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise ValueError(_("a fingerprint is 'sha256:' and 64 hexadecimal digits, as the server printed it"))
    return f"sha256:{digest}"


def log_format(raw: str) -> str:
    return one_of(raw, ("text", "json"))


def language(raw: str) -> str:
    return known(raw) or one_of(raw, LANGUAGES)


def one_of(raw: str, allowed: tuple[str, ...]) -> str:
    if raw.strip() not in allowed:
        raise ValueError(_("expected one of %(allowed)s", allowed=", ".join(allowed)))
    return raw.strip()


def interruption_notices(raw: str) -> str:
    return one_of(raw, ("auto", "off", "aws", "gcp", "azure"))


def storage_direct(raw: str) -> str:
    return one_of(raw, ("auto", "off", "workers", "all"))


def isolation(raw: str) -> str:
    return one_of(raw, ("auto", "required", "user", "sandbox", "none"))


def job_paths(raw: list[str]) -> list[tuple[str, bool]]:
    """Reads `FOLDER:ro` and `FOLDER:rw`; without either, the folder is read-only."""
    grants = []
    for word in words(raw):
        head, _colon, access = word.rpartition(":")
        place, access = (head, access) if access in ("ro", "rw") and head else (word, "ro")
        folder = _expanded(place)
        if not folder.is_absolute():
            raise ValueError(_("expected a whole path, such as /data:ro, got '%(item)s'", item=word))
        grants.append((str(folder), access == "rw"))
    return grants


def words(raw: list[str]) -> list[str]:
    """Returns the words of an option that was repeated, separated by commas, or both."""
    return [word.strip() for item in raw for word in item.split(",") if word.strip()]


def networks(raw: list[str]) -> list[str]:
    for word in words(raw):
        try:
            ip_network(word)
        except ValueError:
            raise ValueError(_("expected networks such as 10.0.0.0/8,fd00::/8")) from None
    return words(raw)


def mail_server(raw: str) -> str:
    address = _address(raw, ("smtp", "smtps", "smtp+plain"))
    if address is None:
        raise ValueError(_("expected smtps://USER@HOST:465, smtp://USER@HOST:587 or smtp+plain://HOST:25"))
    if address.password:
        raise ValueError(_("the password of the mail server comes from SIMPLETUNER_SMTP_PASSWORD"))
    return raw.strip()


def mail_address(raw: str) -> str:
    if not MAIL.fullmatch(raw.strip()):
        raise ValueError(_("expected an e-mail address, such as fleet@example.org"))
    return raw.strip()


def pairs(raw: list[str]) -> dict[str, str]:
    result: dict[str, str] = {}
    for word in words(raw):
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise ValueError(_("expected KEY=VALUE, got '%(item)s'", item=word))
        result[key.strip()] = value.strip()
    return result


def label_patterns(raw: list[str]) -> dict[str, str]:
    """Reads `KEY=GLOB`, or a version comparison such as `trainer>=4.3`, whose sign belongs to the value."""
    result: dict[str, str] = {}
    for word in words(raw):
        compared = COMPARISON.fullmatch(word)
        result |= {compared[1].strip(): compared[2]} if compared else pairs([word])
    return result


def visibility(raw: str) -> str:
    return one_of(raw, ("private", "team", "everybody"))
