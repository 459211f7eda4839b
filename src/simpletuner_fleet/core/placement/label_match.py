"""Matches a worker's labels against those that a job asks for."""

from fnmatch import fnmatchcase

from simpletuner_fleet.core.training.trainer_release import version_fits


def labels_match(wanted: tuple[tuple[str, str], ...], labels: dict[str, str]) -> bool:
    """Tells whether every key is present and its value fits the glob or version asked for; case is ignored."""
    if not wanted:
        return True
    folded = {key.casefold(): value.casefold() for key, value in labels.items()}
    return all(
        key.casefold() in folded and _value_fits(folded[key.casefold()], pattern.casefold())
        for key, pattern in wanted
    )


def _value_fits(value: str, pattern: str) -> bool:
    by_version = version_fits(value, pattern)
    return fnmatchcase(value, pattern) if by_version is None else by_version
