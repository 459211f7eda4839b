"""Explains what is wrong with a field of a request, naming the field and what is allowed there."""

import re
from collections.abc import Collection
from typing import Any

import msgspec
from msgspec import inspect

from simpletuner_fleet.core.configs.spelling import nearest
from simpletuner_fleet.core.cutting import excerpt
from simpletuner_fleet.core.errors import Invalid

FIELD_PATH = re.compile(r" - at `(?:key in )?([^`]*)`$")
UNKNOWN_FIELD = re.compile(r"Object contains unknown field `([^`]*)`")
MISSING_FIELD = re.compile(r"Object missing required field `([^`]*)`")
WRONG_CHOICE = re.compile(r"Invalid enum value (.*)", re.DOTALL)
MOST_TOLD_CHARS = 100
PATH_STEP = re.compile(r"\.([^.\[]+)|\[[^\]]*\]")


def refused_field(error: msgspec.ValidationError, kind: Any) -> Invalid:
    text = str(error)
    at = FIELD_PATH.search(text)
    path = at[1] if at else "$"
    text = FIELD_PATH.sub("", text)
    here = _types_at(kind, path)
    if unknown := UNKNOWN_FIELD.fullmatch(text):
        return _unknown_field(unknown[1], path, here)
    if missing := MISSING_FIELD.fullmatch(text):
        return Invalid(f"The field '{missing[1]}' is missing.", path=f"{path}.{missing[1]}")
    if (choice := WRONG_CHOICE.fullmatch(text)) and (choices := _choices(here)):
        wrong = excerpt(choice[1], MOST_TOLD_CHARS)
        return Invalid(f"{wrong} is not possible here; choose one of {', '.join(choices)}.", path=path)
    return Invalid(text, path=path)


def _unknown_field(name: str, path: str, here: list[inspect.Type]) -> Invalid:
    names = [field.encode_name for one in here if isinstance(one, inspect.StructType) for field in one.fields]
    near = nearest(name, names)
    name = excerpt(name, MOST_TOLD_CHARS)
    if near:
        return Invalid(f"There is no field '{name}' here; did you mean '{near}'?", path=f"{path}.{name}")
    if names:
        return Invalid(
            f"There is no field '{name}' here; there are {', '.join(names)}.", path=f"{path}.{name}"
        )
    return Invalid(f"There is no field '{name}' here; there are none.", path=f"{path}.{name}")


def unknown_parameter(name: str, names: Collection[str]) -> Invalid:
    """Returns an error that names an unknown parameter of a query, and the nearest one that the row knows."""
    near = nearest(name, names)
    name = excerpt(name, MOST_TOLD_CHARS)
    path = f"$.{name}"
    if near:
        return Invalid(
            f"There is no parameter '{name}' here; did you mean '{near}'?",
            path=path,
            next_step="Correct its name, or leave it out of the query.",
        )
    if names:
        return Invalid(
            f"There is no parameter '{name}' here; there are {', '.join(names)}.",
            path=path,
            next_step="Correct its name, or leave it out of the query.",
        )
    return Invalid(
        f"There is no parameter '{name}' here; this request takes none.",
        path=path,
        next_step="Leave it out of the query.",
    )


def _types_at(kind: Any, path: str) -> list[inspect.Type]:
    """Returns the types at a path.

    A path names each field on its way, and has `[…]` for whatever is in a list or an object without fixed fields.
    """
    here = _alternatives(inspect.type_info(kind))
    for step in PATH_STEP.finditer(path):
        here = [inner for one in here for inner in _step(one, step[1])]
    return here


def _step(one: inspect.Type, name: str | None) -> list[inspect.Type]:
    match one:
        case inspect.StructType() if name is not None:
            return [
                inner
                for field in one.fields
                if field.encode_name == name
                for inner in _alternatives(field.type)
            ]
        case inspect.DictType():
            return _alternatives(one.value_type)
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.FrozenSetType():
            return _alternatives(one.item_type)
        case _:
            return []


def _alternatives(one: inspect.Type) -> list[inspect.Type]:
    if isinstance(one, inspect.Metadata):
        return _alternatives(one.type)
    return list(one.types) if isinstance(one, inspect.UnionType) else [one]


def _choices(here: list[inspect.Type]) -> list[str]:
    choices: list[Any] = []
    for one in here:
        if isinstance(one, inspect.EnumType):
            choices += [member.value for member in one.cls]
        elif isinstance(one, inspect.LiteralType):
            choices += one.values
    return [str(choice) for choice in choices]
