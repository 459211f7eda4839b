"""Finds what changed from one version of a config to another, field by field.

A config may hold millions of values: only the first differences are listed, and the others are counted.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, zip_longest
from typing import Any

from msgspec import UNSET, Struct, UnsetType, field, to_builtins

from simpletuner_fleet.core.configs.bundle import Bundle
from simpletuner_fleet.core.cutting import excerpt

MOST_LISTED = 1_000
MOST_COUNTED = 100_000
"""Of those that are not listed."""
MOST_KEY_CHARS = 200
"""Of one name within a path; a name may be as long as the config."""
CONTAINERS = frozenset({dict, list})

_Path = tuple["_Path", str | int] | None
"""The way to a value, from its end. It is written out for what is listed alone."""
_Values = Sequence[Any]
"""What each config has in one place: UNSET where it has nothing there."""
_Place = tuple[_Path, _Values]


class Change(Struct, frozen=True, kw_only=True):
    """Describes a changed field of a config: `was` is absent if the field is new, `is` if it was removed."""

    path: str
    was: Any | UnsetType = UNSET
    is_: Any | UnsetType = field(default=UNSET, name="is")


class BundleDiff(Struct, frozen=True, kw_only=True):
    changes: list[Change]
    left_out: int = 0
    """How many more changes there are; nobody counts beyond `MOST_COUNTED`."""
    left_out_at_least: bool = False
    """There are even more than were counted."""


class DifferingField(Struct, frozen=True, kw_only=True):
    """Describes a field that differs between several configs: its value in each, absent where it has none."""

    path: str
    values: list[Any | UnsetType]


class BundleComparison(Struct, frozen=True, kw_only=True):
    fields: list[DifferingField]
    left_out: int = 0
    """How many more fields differ; nobody counts beyond `MOST_COUNTED`."""
    left_out_at_least: bool = False
    """There are even more than were counted."""


def compare_bundles(bundles: Sequence[Bundle]) -> BundleComparison:
    if not bundles:
        return BundleComparison(fields=[])
    places = _places([_plain(bundle) for bundle in bundles], _any_holds_more)
    leaves = ((path, [_leaf(value) for value in values]) for path, values in places)
    listed, left_out, at_least = _first(place for place in leaves if not _are_same(place[1]))
    fields = [DifferingField(path=_written(path), values=list(values)) for path, values in listed]
    return BundleComparison(fields=fields, left_out=left_out, left_out_at_least=at_least)


def diff_bundles(was: Bundle, now: Bundle) -> BundleDiff:
    """Returns what changed. What only one of the two has is one change, whatever it holds."""
    places = _places([_plain(was), _plain(now)], _are_alike)
    listed, left_out, at_least = _first(place for place in places if not _are_alike(place[1]))
    changes = [Change(path=_written(path), was=before, is_=after) for path, (before, after) in listed]
    return BundleDiff(changes=changes, left_out=left_out, left_out_at_least=at_least)


def _plain(bundle: Bundle) -> dict[str, Any]:
    """Returns the bundle with its settings by their bare names: `--seed` and `seed` are the same flag."""
    plain: dict[str, Any] = to_builtins(bundle)
    settings = bundle.settings
    plain["settings"] = {
        name if name.removeprefix("--") in settings else name.removeprefix("--"): value
        for name, value in plain["settings"].items()
    }
    return plain


def _places(documents: _Values, are_entered: Callable[[_Values], bool]) -> Iterator[_Place]:
    """Yields the places where the documents may differ, each before what is within it, if that is entered."""
    ways: list[Iterator[_Place]] = [iter([(None, documents)])]
    while ways:
        for place in ways[-1]:
            yield place
            if are_entered(place[1]):
                ways.append(_within(*place))
                break
        else:
            ways.pop()


def _within(path: _Path, values: _Values) -> Iterator[_Place]:
    objects = [value if isinstance(value, dict) else {} for value in values]
    for key in sorted(set().union(*objects)):
        inner = [one.get(key, UNSET) for one in objects]
        if type(inner[0]) in CONTAINERS or not _are_same(inner):
            yield (path, key), inner
    lists = [value if isinstance(value, list) else [] for value in values]
    for index, items in enumerate(zip_longest(*lists, fillvalue=UNSET)):
        if type(items[0]) in CONTAINERS or not _are_same(items):
            yield (path, index), items


def _are_same(values: _Values) -> bool:
    first = values[0]
    for value in values:
        if value is first:
            continue
        if type(value) is not type(first) or value != first:
            return False
    return True


def _are_alike(values: _Values) -> bool:
    """Tells whether all of them are objects, or all of them lists, so that they are compared by what is within."""
    kind = type(values[0])
    return kind in CONTAINERS and all(type(value) is kind for value in values)


def _any_holds_more(values: _Values) -> bool:
    return not CONTAINERS.isdisjoint(map(type, values))


def _leaf(value: Any) -> Any:
    return UNSET if type(value) in CONTAINERS and value else value


def _first(places: Iterator[_Place]) -> tuple[list[_Place], int, bool]:
    """Returns the places that are listed, how many more were counted, and whether there are even more than that."""
    listed = list(islice(places, MOST_LISTED))
    counted = sum(1 for _ in islice(places, MOST_COUNTED))
    return listed, counted, next(places, None) is not None


def _written(path: _Path) -> str:
    steps: list[str] = []
    while path is not None:
        path, step = path
        steps.append(f"[{step}]" if isinstance(step, int) else f".{excerpt(step, MOST_KEY_CHARS)}")
    return "$" + "".join(reversed(steps))
