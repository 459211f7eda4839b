"""Lists say what is missing in them because the server cannot read it, and how it is deleted."""

import pytest

from tests.cli.conftest import FakeServer, Run


@pytest.mark.parametrize(
    ("command", "path", "key", "delete"),
    [
        ("quotas list", "/api/quotas", "quotas", "quotas delete"),
        ("quotas mine", "/api/quotas/me", "quotas", "quotas delete"),
        ("prices list", "/api/prices", "rules", "prices delete"),
        ("teams list", "/api/teams", "teams", "teams delete"),
        ("approvals rules", "/api/approvals/rules", "rules", "approvals delete-rule"),
    ],
)
def test_a_list_names_what_cannot_be_read(
    ask: Run, server: FakeServer, command: str, path: str, key: str, delete: str
) -> None:
    answer = {key: [], "unreadable": ["x_1"], "currency": "USD"}
    server.on("GET", path, answer)
    asked = ask(*command.split())
    assert asked.code == 0
    assert "x_1 cannot be read" in asked.err
    assert f"(simpletuner {delete} x_1)" in asked.err
    assert "x_1" not in asked.out
    server.on("GET", path, {key: [], "currency": "USD"})
    assert "cannot be read" not in ask(*command.split()).err, "as an older server answers"


def test_secrets_that_cannot_be_read_are_named_and_never_said_to_be_none(
    ask: Run, server: FakeServer
) -> None:
    server.on("GET", "/api/secrets", {"secrets": [], "unreadable": ["hub"]})
    asked = ask("secrets", "list")
    assert asked.code == 0
    assert "hub cannot be read, so no job gets it." in asked.err
    assert "No secrets yet" not in asked.err
    server.on("GET", "/api/secrets", {"secrets": []})
    assert "cannot be read" not in ask("secrets", "list").err, "as an older server answers"
