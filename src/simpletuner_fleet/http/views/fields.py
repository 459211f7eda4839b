"""Converts stored objects to their JSON form without a line for every field."""

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, TypeVar, get_origin, get_type_hints

from msgspec import Meta, Struct

from simpletuner_fleet.http.edge.routes import rfc3339

_TIME = Meta(extra={"time": True})
Time = Annotated[str | None, _TIME]
"""A moment in RFC 3339. The thing itself has it in seconds since 1970."""

View = TypeVar("View", bound=Struct)


def view_of(view: type[View], thing: Struct, **own: Any) -> View:
    """Makes a view of an object: fields of the same name are copied, and `own` gives the others.

    Times are formatted, and a field that is a list in the view becomes one.
    """
    fields, values_of = _plan(view, type(thing), *own)
    for (name, convert), value in zip(fields, values_of(thing), strict=True):
        own[name] = convert(value) if convert and value is not None else value
    return view(**own)


@cache
def _plan(
    view: type[Struct], kind: type[Struct], *own: str
) -> tuple[tuple[tuple[str, Any], ...], Callable[[Struct], tuple[Any, ...]]]:
    """Returns each field to copy from a thing of this kind, with its converter, if it needs one; and their values."""
    hints = get_type_hints(view, include_extras=True)
    names = [name for name in view.__struct_fields__ if name not in own and hasattr(kind, name)]
    fields = tuple((name, _converter(hints[name])) for name in names)
    if len(names) > 1:
        return fields, attrgetter(*names)
    return fields, lambda thing: tuple(
        getattr(thing, name) for name in names
    )  # of one it would make no tuple


def _converter(hint: Any) -> Any:
    if _TIME in getattr(hint, "__metadata__", ()):
        return rfc3339
    return list if get_origin(hint) is list else None
