"""Approvals from the rule to the verdict, over a real store and real routes."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from devtools.fuzz.in_process_server import InProcessServer
from simpletuner_fleet.core.people.approvals import Approval, ApprovalState
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.http.api.admin import approvals as approvals_api
from simpletuner_fleet.orchestrator.organising.approvals import end_undecided
from simpletuner_fleet.orchestrator.sweep import sweep_once
from simpletuner_fleet.store.sqlite import SqliteStore

COMMAND = {"trainer": "command", "settings": {"command": ["true"]}, "resources": {"gpus": 0}}


async def test_a_rule_holds_a_job_until_enough_others_have_approved_it(tmp_path: Path) -> None:
    server = await InProcessServer(tmp_path / "server", 1, Policy()).open()
    try:
        people = {name: await server.user(name, "member") for name in ("ann", "lea", "max", "tom")}
        await server.good("POST", "/api/teams", {"name": "lab"})
        for name, role in (("ann", "member"), ("lea", "lead"), ("max", "lead"), ("tom", "member")):
            await server.good("PUT", f"/api/teams/lab/members/{name}", {"role": role})
        people = {name: await server.log_in(name) for name in people}
        rule = {"name": "two leads", "trainer": "command", "team": "lab", "count": 2, "expires_s": 600}
        made = await server.good("POST", "/api/approvals/rules", rule)

        async def submit(who: str) -> str:
            body = {"config": COMMAND, "target": "worker"}
            answer = await server.good("POST", "/api/queue/submit", body, people[who])
            assert answer["status"] == "blocked", answer
            return str(answer["job_id"])

        async def says(who: str, job: str, verdict: str, note: str = "") -> int:
            target = f"/api/approvals/{job}/{verdict}"
            return (await server.ask("POST", target, {"note": note}, people[who])).status

        job = await submit("ann")
        assert await says("ann", job, "approve") == 403, "never oneself"
        assert await says("tom", job, "approve") == 403, "nor who does not lead"
        assert await says("lea", job, "approve", "looks good") == 200
        assert await says("lea", job, "approve") == 403, "each of them once"
        waits = await server.good("GET", f"/api/approvals/{job}", None, people["ann"])
        assert (waits["state"], waits["missing"]) == ("pending", ["two leads"])
        assert [vote["note"] for vote in waits["votes"]] == ["looks good"]
        listed = await server.good("GET", "/api/approvals", None, people["max"])
        assert [(one["job_id"], one["yours_to_decide"]) for one in listed["approvals"]] == [(job, True)]
        assert (await server.good("GET", "/api/approvals", None, people["tom"]))["approvals"] == []
        for name, theirs, mine in (("max", [job], []), ("ann", [], [job]), ("tom", [], [])):
            for path, expected in (("requests", theirs), ("me", mine)):
                answer = await server.good("GET", f"/api/approvals/{path}", None, people[name])
                assert [one["job_id"] for one in answer["requests"]] == expected, (name, path)
            count = await server.good("GET", "/api/approvals/pending/count", None, people[name])
            assert count == {"count": len(theirs), "at_least": False}
        assert await says("max", job, "approve") == 200
        assert (await server.good("GET", f"/api/jobs/{job}"))["status"] == "queued"

        own = await submit("lea")
        assert await says("lea", own, "approve") == 403, "a lead needs others for their own, too"
        assert await says("max", own, "reject", "use fewer GPUs") == 200
        ended = await server.good("GET", f"/api/jobs/{own}", None, people["lea"])
        assert (ended["status"], ended["error"]) == ("cancelled", "rejected by max: use fewer GPUs")

        late = await submit("ann")
        server.clock.at += 601
        await sweep_once(server.fleet)
        over = await server.good("GET", f"/api/jobs/{late}", None, people["ann"])
        assert (over["status"], over["error"]) == ("cancelled", "nobody approved it in time")
        assert (await server.good("GET", f"/api/approvals/{late}"))["state"] == "expired"

        assert (await server.good("POST", "/api/queue/submit", {"config": COMMAND, "team": "lab"}))[
            "status"
        ] != "blocked"
        await server.good("DELETE", f"/api/approvals/rules/{made['id']}")
        free = await server.ask("POST", "/api/queue/submit", {"config": COMMAND}, people["ann"])
        assert json.loads(free.body)["status"] == "queued"
    finally:
        await server.close()


async def test_a_word_in_the_last_moment_counts(tmp_path: Path) -> None:
    server = await InProcessServer(tmp_path / "server", 1, Policy()).open()
    try:
        ann = await server.user("ann", "member")
        await server.good(
            "POST", "/api/approvals/rules", {"name": "ask", "trainer": "command", "expires_s": 600}
        )
        body = {"config": COMMAND, "target": "worker"}
        job = (await server.good("POST", "/api/queue/submit", body, ann))["job_id"]
        server.clock.at += 601
        due = await server.fleet.read(lambda view: view.due_approvals(server.clock.at, 10))
        assert [one.job_id for one in due] == [job]
        await server.good("POST", f"/api/approvals/{job}/approve", {})
        await end_undecided(server.fleet, due)
        assert (await server.good("GET", f"/api/approvals/{job}"))["state"] == "approved"
        assert (await server.good("GET", f"/api/jobs/{job}"))["status"] == "queued"
    finally:
        await server.close()


async def test_one_job_that_cannot_be_read_keeps_no_other_waiting_for_an_approval_for_ever(
    tmp_path: Path,
) -> None:
    file = tmp_path / "fleet.db"
    server = await InProcessServer(tmp_path / "first", 1, Policy(), SqliteStore(file)).open()
    ann = await server.user("ann", "member")
    rule = {"name": "ask", "trainer": "command", "expires_s": 600}
    await server.good("POST", "/api/approvals/rules", rule)
    body = {"config": COMMAND, "target": "worker"}
    bad, good = [(await server.good("POST", "/api/queue/submit", body, ann))["job_id"] for _ in range(2)]
    late = server.clock.at + 601
    await server.close()
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE jobs SET tags = '[[' WHERE id = ?", (bad,))
    connection.close()
    server = await InProcessServer(tmp_path / "second", 2, Policy(), SqliteStore(file)).open()
    try:
        server.clock.at = late
        await sweep_once(server.fleet)
        assert (await server.good("GET", f"/api/jobs/{good}"))["status"] == "cancelled"
    finally:
        await server.close()


async def test_a_rule_is_changed_as_a_whole_and_senseless_numbers_are_refused_at_their_field(
    tmp_path: Path,
) -> None:
    server = await InProcessServer(tmp_path / "server", 1, Policy()).open()
    try:
        ann = await server.user("ann", "member")
        rule = {"name": "any", "trainer": "command", "by": "admins"}
        made = await server.good("POST", "/api/approvals/rules", rule)
        at = f"/api/approvals/rules/{made['id']}"
        for name, value in (("hours_over", -1), ("hours_over", 1e9), ("gpus_over", -1), ("count", 0)):
            for method, target in (("POST", "/api/approvals/rules"), ("PUT", at)):
                answer = await server.ask(method, target, {**rule, name: value}, server.admin)
                path = json.loads(answer.body)["errors"][0]["path"]
                assert (answer.status, path) == (422, f"$.{name}"), (method, name)
        body = {"config": COMMAND, "target": "worker", "time_limit_s": 60}
        first = await server.good("POST", "/api/queue/submit", body, ann)
        after = await server.good("PUT", at, {"name": "long", "hours_over": 2, "by": "admins"})
        assert (after["id"], after["trainer"], after["hours_over"]) == (made["id"], "", 2.0)
        second = await server.good("POST", "/api/queue/submit", body, ann)
        assert (first["status"], second["status"] != "blocked") == ("blocked", True)
        assert (await server.good("GET", f"/api/approvals/{first['job_id']}"))["missing"] == ["any"]
        await server.good("PUT", at, {"name": "long", "hours_over": 2, "by": "admins"})
        entries = (await server.good("GET", "/api/audit?event_type=approval_rule.set"))["entries"]
        assert [one["details"]["name"] for one in entries] == ["long", "any"], (
            "what changes nothing is no act"
        )
        assert (await server.ask("PUT", "/api/approvals/rules/ar_none", rule, server.admin)).status == 404
    finally:
        await server.close()


async def test_a_job_that_was_let_in_small_does_not_grow_past_the_rules_by_an_edit(tmp_path: Path) -> None:
    server = await InProcessServer(tmp_path / "server", 1, Policy()).open()
    try:
        ann = await server.user("ann", "member")
        rule = {"name": "large", "gpus_over": 1, "by": "admins"}
        rule = await server.good("POST", "/api/approvals/rules", rule)
        config = {**COMMAND, "resources": {"gpus": 1}}

        async def submit(gpus: int) -> str:
            body = {"config": config, "target": "worker", "gpus": gpus}
            return str((await server.good("POST", "/api/queue/submit", body, ann))["job_id"])

        async def edit(job: str, change: dict[str, object]) -> tuple[int, str]:
            answer = await server.ask("PATCH", f"/api/jobs/{job}", change, ann)
            return answer.status, json.loads(answer.body).get("code", "")

        small, large = await submit(1), await submit(2)
        assert await edit(small, {"gpus": 8}) == (409, "approved_as_it_is")
        assert (await edit(small, {"name": "mine"}))[0] == 200
        assert (await edit(large, {"gpus": 4}))[0] == 200, (
            "nobody has approved it yet, and it still waits for that"
        )
        assert await edit(large, {"gpus": 1}) == (409, "approved_as_it_is"), (
            "it would need no approval any more"
        )
        await server.good("POST", f"/api/approvals/{large}/approve", {})
        assert await edit(large, {"gpus": 8}) == (409, "approved_as_it_is"), "four were approved"
        assert await edit(large, {"time_limit_s": 9e6}) == (409, "approved_as_it_is")

        quota = {"kind": "gpus", "scope": "all", "ceiling": 4, "action": "refuse"}
        await server.good("POST", "/api/quotas", quota)
        await server.good("DELETE", f"/api/approvals/rules/{rule['id']}")
        assert await edit(small, {"gpus": 16}) == (409, "quota_reached")
    finally:
        await server.close()


async def submitted(server: InProcessServer, who: dict[str, str], **more: Any) -> str:
    body = {"config": COMMAND, "target": "worker", **more}
    server.clock.at += 1
    return str((await server.good("POST", "/api/queue/submit", body, who))["job_id"])


async def listed(server: InProcessServer, who: dict[str, str] | None = None) -> list[str]:
    answer = await server.good("GET", "/api/approvals", None, who)
    return [one["job_id"] for one in answer["approvals"]]


async def test_the_approval_of_a_job_that_ends_while_it_waits_is_withdrawn(tmp_path: Path) -> None:
    server = await InProcessServer(tmp_path / "server", 1, Policy(require_approval=True)).open()
    try:
        ann = await server.user("ann", "member")
        first = await submitted(server, ann)
        follower = await submitted(server, ann, depends_on=[first])
        await server.good("POST", f"/api/jobs/{first}/cancel", None, ann)
        assert (await server.good("GET", f"/api/jobs/{follower}"))["status"] == "failed"
        for job in (first, follower):
            over = await server.good("GET", f"/api/approvals/{job}")
            assert (over["state"], over["decided_at"] is not None) == ("withdrawn", True)
            assert not over["yours_to_decide"]
        refused = await submitted(server, ann)
        await server.good("POST", f"/api/approvals/{refused}/reject", {})
        assert (await server.good("GET", f"/api/approvals/{refused}"))["state"] == "rejected"
    finally:
        await server.close()


async def test_approvals_of_ended_jobs_that_were_left_undecided_hide_none_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals_api, "MOST_TOLD", 3)
    server = await InProcessServer(tmp_path / "server", 1, Policy(require_approval=True)).open()
    try:
        ann = await server.user("ann", "member")
        over = [await submitted(server, ann) for _ in range(4)]
        for job in over:
            await server.good("POST", f"/api/jobs/{job}/cancel", None, ann)

        def leave_undecided(approval: Approval) -> Approval:
            return replace(approval, state=ApprovalState.PENDING, decided_at=None)

        for job in over:
            known = await server.fleet.read(lambda view, job=job: view.approval(job))  # type: ignore[misc]
            assert known is not None
            await server.fleet.act(
                lambda transaction, known=known: transaction.tx.put_approval(leave_undecided(known))  # type: ignore[misc]
            )
        waits = await submitted(server, ann)
        assert await listed(server) == [waits]
        assert await server.good("GET", "/api/approvals/pending/count") == {"count": 1, "at_least": False}
    finally:
        await server.close()


async def test_requests_of_one_team_hide_none_of_another_and_a_count_at_its_limit_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals_api, "MOST_TOLD", 3)
    server = await InProcessServer(tmp_path / "server", 1, Policy()).open()
    try:
        for name in ("ann", "tom", "lea"):
            await server.user(name, "member")
        for team, people in (("lab", {"ann": "member"}), ("art", {"tom": "member", "lea": "lead"})):
            await server.good("POST", "/api/teams", {"name": team})
            for name, role in people.items():
                await server.good("PUT", f"/api/teams/{team}/members/{name}", {"role": role})
        ann, tom, lea = [await server.log_in(name) for name in ("ann", "tom", "lea")]
        await server.good("POST", "/api/approvals/rules", {"name": "leads", "expires_s": 86400})
        seen_by_all = {"visibility": "everybody"}
        before = [await submitted(server, ann, **seen_by_all) for _ in range(7)]
        waits = await submitted(server, tom)
        own = [await submitted(server, lea) for _ in range(4)]
        later = await submitted(server, tom)
        assert await listed(server, lea) == [waits, *own[:2]]
        asked = await server.good("GET", "/api/approvals/requests", None, lea)
        assert [one["job_id"] for one in asked["requests"]] == [waits, later]
        assert (asked["pending_count"], asked["at_least"]) == (2, False)
        mine = await server.good("GET", "/api/approvals/me", None, lea)
        assert ([one["job_id"] for one in mine["requests"]], mine["at_least"]) == (own[:3], True)
        assert await server.good("GET", "/api/approvals/pending/count", None, ann) == {
            "count": 0,
            "at_least": False,
        }
        assert await listed(server) == before[:3]
        assert await server.good("GET", "/api/approvals/pending/count") == {"count": 3, "at_least": True}
    finally:
        await server.close()
