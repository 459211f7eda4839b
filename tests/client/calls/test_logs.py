"""A followed log of which no more comes."""

import pytest

from simpletuner_fleet.client import Fleet
from tests.cli.remote.test_watch import SilentServer


def test_a_followed_log_is_asked_for_again_where_the_connection_has_died_in_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("simpletuner_fleet.client.calls.logs.SILENT_S", 0.2)
    monkeypatch.setattr("simpletuner_fleet.client.calls.logs.RECONNECT_S", 0.01)
    other = SilentServer(b"one\ntwo\n")
    try:
        with Fleet(other.url, "st_secret") as fleet:
            assert list(fleet.logs("j_1", follow=True)) == ["one", "two"]
    finally:
        other.stop()
    assert other.opened == 2
