"""Reads KEY=VALUE arguments of the command line."""

from simpletuner_fleet.cli.frame.errors import usage
from simpletuner_fleet.languages import _
from simpletuner_fleet.settings import values


def pairs_of(words: list[str], flag: str, *, split: bool = True) -> dict[str, str]:
    try:
        if split:
            return values.pairs(words)
        return dict(_pair(item) for item in words)
    except ValueError as error:
        raise usage(
            _("%(flag)s cannot be used this way", flag=flag),
            str(error),
            _("for example %(flag)s key=value", flag=flag),
        ) from None


def _pair(item: str) -> tuple[str, str]:
    key, equals, value = item.partition("=")
    if not equals or not key.strip():
        raise ValueError(_("expected KEY=VALUE, got '%(item)s'", item=item))
    return key.strip(), value
