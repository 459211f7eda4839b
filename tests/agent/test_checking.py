"""What `simpletuner worker --check` says before it knows."""

from typing import cast

import pytest

from simpletuner_fleet.agent.checking import Findings, _check_name, _check_way
from simpletuner_fleet.agent.program import WorkerSettings
from simpletuner_fleet.agent.wire.client import OrchestratorClient

OTHERS = "the token belongs to the worker 'gpu-2': the server will show that name, not 'gpu-1'"


class Silent:
    url = "https://127.0.0.1:1"

    async def ask(self) -> None:
        raise ConnectionRefusedError


async def test_nobody_is_told_that_a_certificate_is_trusted_before_one_was_seen() -> None:
    said: list[str] = []
    settings = WorkerSettings(url=Silent.url, token="x", token_file=None, name="w", persistent=True)
    with pytest.raises(ConnectionRefusedError):
        await _check_way(settings, cast(OrchestratorClient, Silent()), Findings(said.append))
    assert said == []


@pytest.mark.parametrize(
    ("known_as", "said"),
    [
        ("gpu-1", ["✓ name       gpu-1"]),
        (
            "gpu-2",
            [f"! name       {OTHERS}"],
        ),
        ("", []),
    ],
)
def test_a_name_other_than_the_tokens_is_said(known_as: str, said: list[str]) -> None:
    lines: list[str] = []
    _check_name("gpu-1", known_as, Findings(lines.append))
    assert lines == said
