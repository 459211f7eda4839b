"""Whom an administrator means by a word: whoever has this id, or else this name."""

from types import SimpleNamespace
from typing import Any

import pytest

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.people.teams import Team
from simpletuner_fleet.orchestrator.organising.naming import known_person, known_team


def test_an_id_comes_before_a_name_that_looks_like_one() -> None:
    odd = SimpleNamespace(id="u_odd")
    view: Any = SimpleNamespace(
        user={"u_ann": SimpleNamespace(id="u_ann"), "u_odd": odd}.get,
        user_by_name={"t_ci": odd, "u_ann": odd, "u_none": odd}.get,
        api_token={"t_ci": object()}.get,
    )
    asked = ("u_ann", "t_ci", "u_none")
    assert [known_person(view, called, "$.x") for called in asked] == ["u_ann", "t_ci", "u_odd"]
    with pytest.raises(Invalid):
        known_person(view, "nobody", "$.x")


def test_a_team_is_meant_by_its_id_first() -> None:
    teams = [Team(id="tm_odd", name="tm_lab", created_at=0.0), Team(id="tm_lab", name="Lab", created_at=1.0)]
    transaction: Any = SimpleNamespace(organisation=SimpleNamespace(teams={one.id: one for one in teams}))
    assert [known_team(transaction, called, "$.x") for called in ("tm_lab", "Lab", "tm_odd")] == [
        "tm_lab",
        "tm_lab",
        "tm_odd",
    ]
    with pytest.raises(Invalid):
        known_team(transaction, "lab", "$.x")
