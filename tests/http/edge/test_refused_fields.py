"""A refused field is named, with what is allowed there."""

from enum import StrEnum
from typing import Any, Literal

import msgspec
import pytest

from simpletuner_fleet.http.edge.refused_fields import refused_field


class Size(StrEnum):
    SMALL = "small"
    LARGE = "large"


class Part(msgspec.Struct, forbid_unknown_fields=True):
    length: int = 0
    size: Size | None = None


class Thing(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    size: Size = Size.SMALL
    mode: Literal["fast", "slow"] | None = None
    parts: tuple[Part, ...] = ()
    by_name: dict[str, Part] = {}


@pytest.mark.parametrize(
    ("sent", "path", "detail"),
    [
        (
            {"name": "a", "size": "huge"},
            "$.size",
            "'huge' is not possible here; choose one of small, large.",
        ),
        (
            {"name": "a", "mode": "quick"},
            "$.mode",
            "'quick' is not possible here; choose one of fast, slow.",
        ),
        (
            {"name": "a", "parts": [{"size": "s"}]},
            "$.parts[0].size",
            "'s' is not possible here; choose one of small, large.",
        ),
        (
            {"name": "a", "by_name": {"x": {"size": "s"}}},
            "$.by_name[...].size",
            "'s' is not possible here; choose one of small, large.",
        ),
        ({"name": "a", "sise": "small"}, "$.sise", "There is no field 'sise' here; did you mean 'size'?"),
        (
            {"name": "a", "parts": [{"lenght": 1}]},
            "$.parts[0].lenght",
            "There is no field 'lenght' here; did you mean 'length'?",
        ),
        (
            {"name": "a", "parts": [{"zzz": 1}]},
            "$.parts[0].zzz",
            "There is no field 'zzz' here; there are length, size.",
        ),
        ({}, "$.name", "The field 'name' is missing."),
        ({"name": 7}, "$.name", "Expected `str`, got `int`"),
    ],
)
def test_a_refused_field_is_named_with_what_is_allowed(sent: dict[str, Any], path: str, detail: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert(sent, Thing)
    invalid = refused_field(refused.value, Thing)
    assert invalid.params["errors"] == [{"path": path, "detail": detail}]
