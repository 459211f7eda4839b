"""Reads KEY=VALUE arguments of the command line."""

from simpletuner_fleet.cli.frame.errors import CliError, usage
from simpletuner_fleet.languages import _
from simpletuner_fleet.settings import values


def pairs_of(words: list[str], flag: str, *, split: bool = True) -> dict[str, str]:
    try:
        if split:
            return values.pairs(words)
        return dict(_pair(item) for item in words)
    except ValueError as error:
        raise _misused(flag, error) from None


def label_patterns_of(words: list[str], flag: str = "--label") -> dict[str, str]:
    """Reads KEY=GLOB, or a version comparison such as trainer>=4.3."""
    try:
        return values.label_patterns(words)
    except ValueError as error:
        raise _misused(flag, error) from None


def _misused(flag: str, error: ValueError) -> CliError:
    return usage(
        _("%(flag)s cannot be used this way", flag=flag),
        str(error),
        _("for example %(flag)s key=value", flag=flag),
    )


def _pair(item: str) -> tuple[str, str]:
    key, equals, value = item.partition("=")
    if not equals or not key.strip():
        raise ValueError(_("expected KEY=VALUE, got '%(item)s'", item=item))
    return key.strip(), value
