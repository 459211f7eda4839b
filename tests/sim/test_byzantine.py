"""The worker that lies says something in every field that the protocol has."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from simpletuner_fleet.sim.byzantine import Byzantine
from simpletuner_fleet.sim.world import World

SEEDS = 60


def liar(seed: int) -> Byzantine:
    view = SimpleNamespace(audit_head=lambda: SimpleNamespace(seq=1, hash="f"), live_attempts=list)
    orchestrator = SimpleNamespace(store=SimpleNamespace(view=view))
    return Byzantine(World(seed), cast(Any, orchestrator), cast(Any, None), "token")


def said(message: msgspec.Struct, values: dict[str, set[str]]) -> None:
    for name in message.__struct_fields__:
        value = getattr(message, name)
        values.setdefault(f"{type(message).__name__}.{name}", set()).add(repr(value)[:200])
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, msgspec.Struct) and type(one).__name__ in (
                "HeldAttempt",
                "GpuReport",
                "GpuSample",
            ):
                said(one, values)


@pytest.mark.parametrize("kind", ["_register", "_heartbeat", "_accept", "_report", "_goodbye"])
def test_no_field_of_a_message_is_left_as_it_is(kind: str) -> None:
    values: dict[str, set[str]] = {}
    for seed in range(SEEDS):
        make = getattr(liar(seed), kind)
        said(make(7) if kind in ("_accept", "_report") else make("j_1", 7), values)
    same = {name for name, seen in values.items() if len(seen) == 1}
    assert {name for name in same if "audit_head" not in name} == set(), (
        "the liar never says anything else there"
    )
