"""`simpletuner notifications` and `simpletuner webhooks`: what is shown once is shown, however little is asked for."""

import pytest

from tests.cli.conftest import Answer, FakeServer, Run

ENDPOINT = {"id": "n_1", "name": "siem", "channel": "webhook", "status": "active", "events": ["audit"]}
SECRET = "whsec_0123456789"


@pytest.fixture
def endpoints(server: FakeServer) -> FakeServer:
    made = {"endpoint": ENDPOINT, "secret": SECRET}
    server.on("GET", "/api/notifications", {"endpoints": [ENDPOINT]})
    server.on("POST", "/api/notifications", Answer(201, made))
    server.on("POST", "/api/notifications/n_1/secret", made)
    server.on("PATCH", "/api/notifications/n_1", ENDPOINT)
    return server


@pytest.mark.parametrize("words", ["add --address https://siem.example.org", "rotate n_1"])
@pytest.mark.parametrize("asked", ["", "-q", "-o name", "--fields id", "-q -o name --fields id,secret"])
def test_a_signing_secret_is_shown_however_little_is_asked_for(
    ask: Run, endpoints: FakeServer, words: str, asked: str
) -> None:
    shown = ask("webhooks", *words.split(), *asked.split())
    assert shown.code == 0
    assert (shown.out + shown.err).count(SECRET) == 1


@pytest.mark.parametrize("asked", ["--json", "-q -o jsonl", "--fields secret"])
def test_a_signing_secret_that_programs_read_is_shown_to_nobody_else(
    ask: Run, endpoints: FakeServer, asked: str
) -> None:
    shown = ask("webhooks", "rotate", "n_1", *asked.split())
    assert SECRET in shown.out
    assert SECRET not in shown.err


def test_a_name_is_looked_up_before_the_call_is_printed(ask: Run, endpoints: FakeServer) -> None:
    printed = ask("webhooks", "rotate", "siem", "--overlap", "1h", "--curl")
    assert f"{endpoints.url}/api/notifications/n_1/secret" in printed.out
    assert '{"overlap_s": 3600.0}' in printed.out
