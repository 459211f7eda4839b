"""Reports and budgets tell everybody of their own use and their teams', and nobody of more."""

import json
from pathlib import Path
from typing import Any

from devtools.fuzz.in_process_server import Headers, InProcessServer
from simpletuner_fleet.core.policy import Policy

HOUR_S = 3600.0


async def test_ones_own_and_ones_teams_use_is_told_and_nothing_of_others(tmp_path: Path) -> None:
    server = await InProcessServer(tmp_path / "server", 1, Policy()).open()
    try:
        people = {name: await server.user(name, "member") for name in ("ann", "tom", "fay")}
        await server.good("POST", "/api/teams", {"name": "lab"})
        for name in ("ann", "tom"):
            await server.good("PUT", f"/api/teams/lab/members/{name}", {"role": "member"})
        people = {name: await server.log_in(name) for name in people}
        await server.good("POST", "/api/prices", {"price_micros": 2_000_000})
        each = {"kind": "money_month", "scope": "each", "ceiling": 50_000_000}
        team = {"kind": "money_month", "scope": "team", "subject": "lab", "ceiling": 90_000_000}
        for quota in (each, team):
            await server.good("POST", "/api/quotas", quota)
        worker = await server.worker("gpu", gpus=1)

        async def runs(who: str, config_name: str, visibility: str, **more: Any) -> None:
            config = {"trainer": "command", "settings": {"command": ["true"]}, "resources": {"gpus": 1}}
            body = {"config": config, "config_name": config_name, "visibility": visibility, **more}
            answer = await server.good("POST", "/api/queue/submit", body, people[who])
            offer = await worker.offer_of(answer["job_id"])
            await worker.accept(offer)
            server.clock.at += HOUR_S
            await worker.report(offer, "completed", exit_code=0)

        await runs("ann", "cats", "team", team="lab")
        await runs("ann", "hush", "private", team="lab")
        await runs("fay", "dogs", "everybody")
        server.clock.at += 1

        async def by(who: Headers | None, kind: str) -> dict[str, int]:
            report = await server.good("GET", f"/api/usage?by={kind}&since=1d", None, who)
            return {line["name"]: line["cost_micros"] for line in report["lines"]}

        assert await by(None, "config") == {"cats": 2_000_000, "hush": 2_000_000, "dogs": 2_000_000}
        assert await by(people["ann"], "config") == {"cats": 2_000_000, "hush": 2_000_000}
        assert await by(people["tom"], "config") == {"cats": 2_000_000, "*": 2_000_000}
        assert await by(people["tom"], "person") == {"ann": 2_000_000, "*": 2_000_000}
        assert await by(people["tom"], "team") == {"lab": 4_000_000}
        assert await by(people["fay"], "person") == {"fay": 2_000_000}
        exported = await server.ask("GET", "/api/usage/export?by=config&since=1d", None, people["fay"])
        assert b"dogs" in exported.body
        assert b"cats" not in exported.body

        async def budgets(who: Headers | None) -> set[tuple[str, int]]:
            answer = await server.good("GET", "/api/budgets", None, who)
            return {(one["account"], one["spent_micros"]) for one in answer["budgets"]}

        assert await budgets(people["tom"]) == {("tom", 0), ("lab", 4_000_000)}
        assert await budgets(people["fay"]) == {("fay", 2_000_000)}
        assert {("ann", 4_000_000), ("fay", 2_000_000), ("lab", 4_000_000)} <= await budgets(None)
        refused = await server.ask("POST", "/api/prices", {"price_micros": 1}, people["ann"])
        assert (refused.status, json.loads(refused.body)["code"]) == (403, "forbidden")
    finally:
        await server.close()
