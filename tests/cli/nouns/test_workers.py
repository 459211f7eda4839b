"""`simpletuner workers drain --wait`: it looks at one worker, however many there are."""

import pytest

from tests.cli.conftest import Answer, FakeServer, Run

EVENT = b"event: worker\ndata: {}\n\n"
WORKER = {"id": "w_1", "name": "gpu-1", "status": "draining", "labels": {}}


def test_of_a_large_fleet_only_the_worker_that_is_drained_is_read_again(
    ask: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After every change of anything, which in a large fleet is several times a second."""
    monkeypatch.setattr("simpletuner_fleet.cli.remote.changes.RECONNECT_S", 0.0)
    left = [["j_1", "j_2"], ["j_2"], []]
    looks = iter({**WORKER, "attempts": attempts} for attempts in left)
    listed = iter({"workers": [{**WORKER, "attempts": attempts}]} for attempts in (left[0], *left))
    server.on("GET", "/api/admin/workers", lambda seen: next(listed))
    server.on("GET", "/api/admin/workers/w_1", lambda seen: next(looks))
    server.on("POST", "/api/admin/workers/w_1/drain", WORKER)
    server.on("GET", "/api/events", Answer(200, EVENT))
    result = ask("workers", "drain", "gpu-1", "--wait")
    assert result.code == 0, result.err
    assert "is no longer running anything" in result.err
    assert len(server.asked("GET", "/api/admin/workers")) <= 2
    assert len(server.asked("GET", "/api/admin/workers/w_1")) == len(left)
