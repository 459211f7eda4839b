"""Converts stored objects to their JSON form without a line for every field."""

from functools import cache
from typing import Annotated, Any, TypeVar, get_origin, get_type_hints

from msgspec import Meta, Struct

from simpletuner_fleet.http.edge.routes import rfc3339

_TIME = Meta(extra={"time": True})
Time = Annotated[str | None, _TIME]
"""A moment in RFC 3339. The thing itself has it in seconds since 1970."""

View = TypeVar("View", bound=Struct)


def view_of(view: type[View], thing: object, **own: Any) -> View:
    """Makes a view of an object: fields of the same name are copied, and `own` gives the others.

    Times are formatted, and a field that is a list in the view becomes one.
    """
    for name, convert in _plan(view):
        if name not in own and hasattr(thing, name):
            value = getattr(thing, name)
            own[name] = convert(value) if convert and value is not None else value
    return view(**own)


@cache
def _plan(view: type[Struct]) -> tuple[tuple[str, Any], ...]:
    """Returns each field with its converter, if it needs one."""
    hints = get_type_hints(view, include_extras=True)
    return tuple((name, _converter(hints[name])) for name in view.__struct_fields__)


def _converter(hint: Any) -> Any:
    if _TIME in getattr(hint, "__metadata__", ()):
        return rfc3339
    return list if get_origin(hint) is list else None
