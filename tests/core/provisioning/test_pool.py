"""What may be changed of a pool while it has machines."""

from typing import Any

import pytest

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.provisioning.pool import PoolRequest, check_same_place

BEFORE: dict[str, Any] = {
    "provider": "ssh",
    "secret": "key",
    "settings": {"hosts": "a,b:22", "namespace": "gpus", "command": "simpletuner"},
}


def changed(**settings: str) -> dict[str, Any]:
    return {"settings": {**BEFORE["settings"], **settings}}


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"provider": "slurm"}, "$.provider"),
        ({"secret": "other"}, "$.secret"),
        ({"secret": None}, "$.secret"),
        (changed(namespace="others"), "$.settings"),
        (changed(api_url="https://elsewhere.example"), "$.settings"),
        (changed(config="/etc/other.conf"), "$.settings"),
        (changed(hosts="a"), "$.settings"),
        (changed(hosts="a,b:23"), "$.settings"),
        ({"settings": {}}, "$.settings"),
    ],
)
def test_a_pool_does_not_leave_the_place_of_its_machines(changes: dict[str, Any], path: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_same_place(PoolRequest(**BEFORE), PoolRequest(**{**BEFORE, **changes}))
    assert refused.value.params["errors"][0]["path"] == path


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_machines": 9, "idle_s": 5.0, "enabled": False},
        changed(command="/opt/simpletuner"),
        changed(hosts="c, b:22, a"),
    ],
)
def test_everything_else_may_change(changes: dict[str, Any]) -> None:
    check_same_place(PoolRequest(**BEFORE), PoolRequest(**{**BEFORE, **changes}))
