"""What an agent is told of a tool that does not exist."""

from typing import Any

import pytest

from simpletuner_fleet.cli.mcp.protocol import RpcError, _call


class Box:
    def described(self) -> list[dict[str, Any]]:
        return [{"name": "list_jobs"}, {"name": "explain_job"}]

    def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        raise KeyError(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("list_job", "there is no such tool; did you mean list_jobs?"),
        ("make_coffee", "there is no such tool"),
    ],
)
def test_a_misspelt_tool_is_told_with_the_nearest(name: str, said: str) -> None:
    with pytest.raises(RpcError) as refused:
        _call({"name": name}, Box())
    assert refused.value.text == said
