"""An edited job is admitted like a new one in its place, and not like one beside it."""

from pathlib import Path

import pytest

from devtools.fuzz.in_process_server import InProcessServer
from simpletuner_fleet.core.policy import Policy

SUBMITTED = {
    "config": {"trainer": "command", "settings": {"command": ["true"]}},
    "target": "worker",
    "gpus": 2,
}


@pytest.mark.parametrize(("kind", "ceiling"), [("gpus", 4), ("running_jobs", 1), ("jobs_per_hour", 1)])
async def test_a_job_grows_up_to_a_ceiling_that_only_it_has_used_of(
    tmp_path: Path, kind: str, ceiling: int
) -> None:
    server = await InProcessServer(tmp_path / "server", 1, Policy()).open()
    try:
        ann = await server.user("ann", "member")
        quota = {"kind": kind, "scope": "each", "ceiling": ceiling, "action": "refuse"}
        await server.good("POST", "/api/quotas", quota)
        job = (await server.good("POST", "/api/queue/submit", SUBMITTED, ann))["job_id"]
        edited = await server.good("PATCH", f"/api/jobs/{job}", {"gpus": 4}, ann)
        assert edited["requires"]["gpus"] == 4
        beyond = await server.ask("PATCH", f"/api/jobs/{job}", {"gpus": 5}, ann)
        assert beyond.status == (409 if kind == "gpus" else 200)
    finally:
        await server.close()
