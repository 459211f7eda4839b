"""What a team may use: each rule refuses its jobs or lets them wait, with the reason, and leaves other teams alone."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from devtools.fuzz.in_process_server import CPU_JOB, Headers, InProcessServer
from simpletuner_fleet.cli.jobs.outlook import outlook_lines
from simpletuner_fleet.core.people.visibility import VisibilityScope
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.engine.memory.organisation import Organisation

GPU_JOB = {**CPU_JOB, "resources": {"gpus": 1}}


class TwoTeams(Struct):
    server: InProcessServer
    ann: Headers
    """Of the team `narrow`, which has the rules of the test."""
    bob: Headers
    """Of the team `wide`, which has none."""
    lead: Headers
    """Leads `narrow`."""

    async def rule(self, **rules: Any) -> None:
        await self.server.good("PATCH", "/api/teams/narrow", {"rules": rules})

    async def submit(self, by: Headers, **options: Any) -> tuple[int, Any]:
        answer = await self.server.ask("POST", "/api/queue/submit", {"config": CPU_JOB, **options}, by)
        return answer.status, json.loads(answer.body)

    async def waits(self, by: Headers, **options: Any) -> tuple[str, str | None]:
        """Returns the status of a job that was let in, and why it waits."""
        status, said = await self.submit(by, **options)
        assert status == 200, said
        job = await self.server.good("GET", f"/api/jobs/{said['job_id']}")
        return str(job["status"]), (job["explain"] or {}).get("code")


@pytest.fixture
async def teams(tmp_path: Path) -> AsyncIterator[TwoTeams]:
    server = await InProcessServer(tmp_path / "server", 1, Policy()).open()
    for name in ("ann", "bob", "cleo"):
        await server.user(name, "member")
    for name, members in (("narrow", {"ann": "member", "cleo": "lead"}), ("wide", {"bob": "member"})):
        await server.good("POST", "/api/teams", {"name": name})
        for member, role in members.items():
            await server.good("PUT", f"/api/teams/{name}/members/{member}", {"role": role})
    ann, bob, cleo = [await server.log_in(name) for name in ("ann", "bob", "cleo")]
    yield TwoTeams(server, ann, bob, cleo)
    await server.close()


async def test_workers_by_a_glob_of_a_label(teams: TwoTeams) -> None:
    await teams.server.worker("room-b-1")
    await teams.rule(workers=["only=room-a*"])
    assert await teams.waits(teams.ann) == ("queued", "NOT_FOR_TEAM")
    assert await teams.waits(teams.bob) == ("dispatched", None)
    await teams.server.worker("room-a-1")
    assert await teams.waits(teams.ann) == ("dispatched", None)


async def test_kinds_of_gpus(teams: TwoTeams) -> None:
    await teams.server.worker("gpu", gpus=8)
    await teams.rule(gpus=["*h100*"])
    assert await teams.waits(teams.ann, config=GPU_JOB) == ("queued", "NOT_FOR_TEAM")
    assert await teams.waits(teams.bob, config=GPU_JOB) == ("dispatched", None)
    await teams.rule(gpus=["*"])
    assert await teams.waits(teams.ann, config=GPU_JOB) == ("dispatched", None)


async def test_trainers(teams: TwoTeams) -> None:
    await teams.server.worker("gpu")
    await teams.rule(trainers=["simpletuner"])
    status, said = await teams.submit(teams.ann)
    assert (status, said["code"]) == (403, "not_for_team")
    assert "'command'" in said["detail"]
    assert "simpletuner" in said["detail"]
    assert await teams.waits(teams.bob) == ("dispatched", None)
    await teams.rule(trainers=["simpletuner", "command"])
    assert await teams.waits(teams.ann) == ("dispatched", None)


async def test_targets(teams: TwoTeams) -> None:
    await teams.server.worker("gpu")
    await teams.rule(targets=["local"])
    status, said = await teams.submit(teams.ann, target="worker")
    assert (status, said["code"]) == (403, "not_for_team")
    assert "'worker'" in said["detail"]
    assert await teams.waits(teams.bob, target="worker") == ("dispatched", None)
    await teams.rule(targets=["worker"])
    assert await teams.waits(teams.ann, target="worker") == ("dispatched", None)


async def test_priorities_of_members_and_of_leads(teams: TwoTeams) -> None:
    await teams.rule(max_priority=5, lead_max_priority=8)
    for who, allowed in ((teams.ann, 5), (teams.lead, 8), (teams.bob, 0)):
        status, said = await teams.submit(who, priority=allowed + 1)
        assert (status, said["code"]) == (403, "forbidden"), said
        status, said = await teams.submit(who, priority=allowed)
        assert status == 200, said


async def test_a_lead_s_token_that_was_made_to_submit_sets_the_priorities_of_a_member(
    teams: TwoTeams,
) -> None:
    await teams.rule(max_priority=5, lead_max_priority=8)
    submits = ["queue.submit", "queue.submit.command", "jobs.read", "jobs.edit"]
    for permissions, allowed in ((submits, 5), ([*submits, "queue.priority"], 8)):
        asked = {"name": "ci", "permissions": permissions}
        made = await teams.server.good("POST", "/api/me/tokens", asked, teams.lead)
        by = {"authorization": f"Bearer {made['token']}"}
        status, said = await teams.submit(by, priority=allowed + 1)
        assert (status, said["code"]) == (403, "forbidden"), said
        status, said = await teams.submit(by, priority=allowed)
        assert status == 200, said
        for priority, code in ((allowed + 1, 403), (allowed - 1, 200)):
            path = f"/api/jobs/{said['job_id']}"
            assert (await teams.server.ask("PATCH", path, {"priority": priority}, by)).status == code


async def test_a_lead_raises_jobs_of_the_team_as_far_as_its_rules_say_and_no_others(teams: TwoTeams) -> None:
    await teams.rule(max_priority=5, lead_max_priority=8)
    of_team = (await teams.submit(teams.ann))[1]["job_id"]
    for priority, code in ((9, 403), (8, 200)):
        path, body = f"/api/queue/{of_team}/priority", {"priority": priority}
        answer = await teams.server.ask("POST", path, body, teams.lead)
        assert answer.status == code, answer
    own = (await teams.submit(teams.lead))[1]["job_id"]
    asked = {"search": {"q": own}, "expected": 1, "priority": 9}
    acted = await teams.server.good("POST", "/api/matching/priority", asked, teams.lead)
    assert (acted["done"], acted["refused"]) == (0, 1)
    await teams.server.good("PUT", "/api/teams/wide/members/cleo", {"role": "member"})
    status, said = await teams.submit(teams.lead, team="wide", priority=8)
    assert (status, said["code"]) == (403, "forbidden")
    raised = await teams.server.good("POST", f"/api/queue/{of_team}/priority", {"priority": 9})
    assert raised["priority"] == 9


async def test_who_joins_or_leaves_a_team_submits_as_that_allows_from_then_on(teams: TwoTeams) -> None:
    async def depend_on(job_id: str) -> int:
        return (await teams.submit(teams.ann, depends_on=[job_id]))[0]

    hidden = (await teams.submit(teams.bob, visibility="team"))[1]["job_id"]
    membership = "/api/teams/wide/members/ann"
    assert await depend_on(hidden) == 422
    await teams.server.good("PUT", membership, {"role": "member"})
    assert await depend_on(hidden) == 200
    await teams.server.good("DELETE", membership)
    assert await depend_on(hidden) == 422


async def test_a_rule_that_changes_concerns_those_who_wait(teams: TwoTeams) -> None:
    await teams.rule(workers=["only=nowhere"])
    await teams.server.worker("gpu")
    status, said = await teams.submit(teams.ann)
    assert status == 200
    job = f"/api/jobs/{said['job_id']}"
    assert (await teams.server.good("GET", job))["explain"]["code"] == "NOT_FOR_TEAM"
    await teams.rule(workers=[])
    assert (await teams.server.good("GET", job))["status"] == "dispatched"


async def test_an_edit_of_a_waiting_job_is_held_to_the_rules_as_well(teams: TwoTeams) -> None:
    await teams.rule(targets=["worker"], max_priority=5)
    status, said = await teams.submit(teams.ann, target="worker")
    assert status == 200
    for change, code in (({"target": "local"}, 403), ({"priority": 6}, 403), ({"priority": 5}, 200)):
        answer = await teams.server.ask("PATCH", f"/api/jobs/{said['job_id']}", change, teams.ann)
        assert answer.status == code, (change, answer)


async def test_who_waits_learns_that_a_worker_is_busy_and_not_with_whose_private_job(teams: TwoTeams) -> None:
    await teams.server.worker("gpu-1", max_jobs=1)
    _, hidden = await teams.submit(teams.bob, visibility="private", name="secret-plan")
    _, waiting = await teams.submit(teams.ann)
    answer = await teams.server.ask("GET", f"/api/jobs/{waiting['job_id']}/outlook", None, teams.ann)
    outlook = json.loads(answer.body)
    assert outlook["busy"] == [{"worker": "gpu-1", "job_id": "", "job": ""}]
    assert hidden["job_id"] not in str(outlook)
    assert outlook_lines(outlook, {}) == ["gpu-1 is busy; when that ends is not known."]


async def test_what_the_reader_of_a_list_of_teams_may_see_is_not_worked_out_for_each_team(
    teams: TwoTeams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be a thousand teams, and all of them are looked at to work it out."""
    scope, worked_out = Organisation.visibility_scope, Counter[str]()

    def counted(self: Organisation, ids: Iterable[str], **held: bool) -> VisibilityScope:
        worked_out["times"] += 1
        return scope(self, ids, **held)

    monkeypatch.setattr(Organisation, "visibility_scope", counted)
    times = []
    for more in range(2):
        worked_out.clear()
        listed = (await teams.server.good("GET", "/api/teams"))["teams"]
        times.append(worked_out["times"])
        assert [one["your_role"] for one in listed] == [None] * (2 + 9 * more)
        for number in range(9 * (1 - more)):
            await teams.server.good("POST", "/api/teams", {"name": f"team {number}"})
    assert times[0] == times[1]


async def test_a_lead_who_is_none_any_more_leads_nothing_though_somebody_joins_in_this_moment(
    teams: TwoTeams,
) -> None:
    server, lead = teams.server, teams.lead
    assert "queue.approve" in (await server.good("GET", "/api/whoami", None, lead))["permissions"]
    answers = await asyncio.gather(
        server.ask("PUT", "/api/teams/narrow/members/bob", {"role": "member"}, server.admin),
        server.ask("PUT", "/api/teams/narrow/members/cleo", {"role": "viewer"}, server.admin),
    )
    assert [one.status for one in answers] == [200, 200]
    assert "queue.approve" not in (await server.good("GET", "/api/whoami", None, lead))["permissions"]


async def test_a_token_leads_a_team_only_with_what_a_lead_holds_and_while_its_user_may_log_in(
    teams: TwoTeams,
) -> None:
    server = teams.server
    await server.good("POST", "/api/approvals/rules", {"name": "all", "team": "narrow"})

    async def token(*permissions: str) -> Headers:
        asked = {"name": "t", "permissions": list(permissions)}
        made = await server.good("POST", "/api/me/tokens", asked, teams.lead)
        return {"authorization": f"Bearer {made['token']}"}

    async def asks(by: Headers) -> list[int]:
        _, said = await teams.submit(teams.ann)
        acts: tuple[tuple[str, str, Any], ...] = (
            ("POST", f"/api/approvals/{said['job_id']}/reject", None),
            ("PATCH", "/api/teams/narrow", {"visibility": "everybody"}),
            ("PUT", "/api/teams/narrow/members/bob", {"role": "lead"}),
            ("DELETE", "/api/teams/narrow/members/bob", None),
        )
        return [(await server.ask(*act, by)).status for act in acts]

    narrow, wide = await token("jobs.read", "queue.read"), await token("queue.approve", "queue.priority")
    assert await asks(narrow) == [403] * 4
    assert await asks(wide) == [200] * 4
    cleo = (await server.good("GET", "/api/me", None, teams.lead))["id"]
    await server.good("DELETE", f"/api/admin/users/{cleo}")
    for by in (narrow, wide):
        assert await asks(by) == [401] * 4
        assert (await server.ask("GET", "/api/teams", None, by)).status == 401


async def test_a_token_of_somebody_whom_a_rule_names_decides_only_if_it_may_all_that_they_may(
    teams: TwoTeams,
) -> None:
    server = teams.server
    rule = {"name": "by bob", "team": "narrow", "by": "people", "people": ["bob"]}
    await server.good("POST", "/api/approvals/rules", rule)
    held = (await server.good("GET", "/api/whoami", None, teams.bob))["permissions"]
    await server.good("PATCH", "/api/teams/narrow", {"visibility": "everybody"})
    for permissions, status in ((["jobs.read", "queue.read"], 403), (held, 200)):
        asked = {"name": "t", "permissions": permissions}
        made = await server.good("POST", "/api/me/tokens", asked, teams.bob)
        by = {"authorization": f"Bearer {made['token']}"}
        _, said = await teams.submit(teams.ann)
        at = f"/api/approvals/{said['job_id']}"
        assert (await server.good("GET", at, None, by))["yours_to_decide"] is (status == 200)
        answer = await server.ask("POST", f"{at}/approve", None, by)
        assert answer.status == status, answer


async def test_who_leads_one_team_and_steers_all_jobs_approves_those_of_their_team_alone(
    teams: TwoTeams,
) -> None:
    server = teams.server
    may = {"permissions": ["queue.submit", "queue.submit.command", "queue.read", "jobs.read", "jobs.cancel"]}
    await server.good("PUT", "/api/admin/roles/operator", {**may, "all_jobs": True})
    olga = await server.user("olga", "operator")
    await server.good("PUT", "/api/teams/wide/members/olga", {"role": "lead"})
    await server.good("POST", "/api/approvals/rules", {"name": "all"})
    for team, by, status in (("narrow", teams.ann, 403), ("wide", teams.bob, 200)):
        _, said = await teams.submit(by)
        assert said["status"] == "blocked", team
        for at in (f"/api/queue/{said['job_id']}/approve", f"/api/approvals/{said['job_id']}/approve"):
            answer = await server.ask("POST", at, None, olga)
            assert answer.status == status, (at, answer)
            if status == 200:
                break
    _, own = await teams.submit(olga, team="")
    assert own["status"] == "blocked", "to lead a team is not to approve every job"
