"""Finds what changed from one version of a config to another, field by field."""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType, field, to_builtins

from simpletuner_fleet.core.configs.bundle import Bundle


class Change(Struct, frozen=True, kw_only=True):
    """Describes a changed field of a config: `was` is absent if the field is new, `is` if it was removed."""

    path: str
    was: Any | UnsetType = UNSET
    is_: Any | UnsetType = field(default=UNSET, name="is")


class DifferingField(Struct, frozen=True, kw_only=True):
    """Describes a field that differs between several configs: its value in each, absent where it has none."""

    path: str
    values: list[Any | UnsetType]


def differing_fields(bundles: Sequence[Bundle]) -> list[DifferingField]:
    leaves = [dict(_leaves("$", _plain(bundle))) for bundle in bundles]
    paths = sorted({path for one in leaves for path in one})
    fields = [DifferingField(path=path, values=[one.get(path, UNSET) for one in leaves]) for path in paths]
    return [one for one in fields if any(_differ(one.values[0], value) for value in one.values[1:])]


def diff_bundles(was: Bundle, now: Bundle) -> list[Change]:
    return list(_changes("$", _plain(was), _plain(now)))


def _plain(bundle: Bundle) -> dict[str, Any]:
    """Returns the bundle with its settings by their bare names: `--seed` and `seed` are the same flag."""
    plain: dict[str, Any] = to_builtins(bundle)
    settings = bundle.settings
    plain["settings"] = {
        name if name.removeprefix("--") in settings else name.removeprefix("--"): value
        for name, value in plain["settings"].items()
    }
    return plain


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(f"{path}.{key}", inner)
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from _leaves(f"{path}[{index}]", inner)
    else:
        yield path, value


def _differ(one: Any, other: Any) -> bool:
    return type(one) is not type(other) or one != other


def _changes(path: str, was: Any, now: Any) -> Iterator[Change]:
    if isinstance(was, dict) and isinstance(now, dict):
        for key in sorted(was.keys() | now.keys()):
            yield from _changes(f"{path}.{key}", was.get(key, UNSET), now.get(key, UNSET))
    elif isinstance(was, list) and isinstance(now, list):
        for index in range(max(len(was), len(now))):
            yield from _changes(f"{path}[{index}]", *(_item(side, index) for side in (was, now)))
    elif _differ(was, now):
        yield Change(path=path, was=was, is_=now)


def _item(items: list[Any], index: int) -> Any:
    return items[index] if index < len(items) else UNSET
