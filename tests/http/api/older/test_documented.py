"""Every request of the older guides, sent as they write it, to a real server."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.http.api.older.table import OLDER_NAMES
from simpletuner_fleet.http.application import ROUTES
from simpletuner_fleet.orchestrator.people.passwords import Cost, Passwords
from simpletuner_fleet.ports import Vault
from simpletuner_fleet.store.sealing import SealedVault
from tests.http.api.older import documented
from tests.http.api.older.documented_row import Documented
from tests.http.api_kit import CPU_CONFIG, Running, orchestrator

SECTIONS = [
    name for name in vars(documented) if name.isupper() and isinstance(getattr(documented, name), list)
]
PASSWORD = "long enough for everybody"
ROOT = Path(__file__).parents[4]
BOUNDARY = "------------------------d74496d66958873e"


class Scene:
    """Makes what a request names, when it names it."""

    def __init__(self, running: Running, ann: httpx2.AsyncClient, known: dict[str, str]) -> None:
        self.running, self.ann, self.known = running, ann, known

    async def fill(self, said: Any) -> Any:
        if isinstance(said, dict):
            return {name: await self.fill(value) for name, value in said.items()}
        if isinstance(said, list):
            return [await self.fill(value) for value in said]
        if isinstance(said, str):
            for name in re.findall(r"\{(\w+)\}", said):
                said = said.replace(f"{{{name}}}", self.known.get(name) or await getattr(self, name)())
        return said

    async def waiting(self) -> str:
        return str((await self.running.submit(worker_labels={"nobody": "has"}))["job_id"])

    async def ended(self) -> str:
        job_id = await self.waiting()
        await self.running.post(f"/api/jobs/{job_id}/cancel")
        return job_id

    async def blocked(self) -> str:
        answer = (await self.ann.post("/api/queue/submit", json={"config": CPU_CONFIG})).json()
        assert answer["status"] == "blocked", answer
        return str(answer["job_id"])

    async def rule(self) -> str:
        return await self._made("/api/approvals/rules", {"name": "big ones", "config": "big"})

    async def quota(self) -> str:
        return await self._made("/api/quotas", {"kind": "gpus", "scope": "all", "ceiling": 500})

    async def endpoint(self) -> str:
        body = {
            "name": "x",
            "channel": "webhook",
            "address": "https://ci.example.com/x",
            "events": ["job.failed"],
        }
        return str((await self.running.http.post("/api/notifications", json=body)).json()["endpoint"]["id"])

    async def token(self) -> str:
        made = await self.ann.post("/api/me/tokens", json={"name": "own", "permissions": ["jobs.read"]})
        return str(made.json()["id"])

    async def _made(self, path: str, body: dict[str, Any]) -> str:
        answer = await self.running.http.post(path, json=body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    async def ask(self, one: Documented) -> httpx2.Response:
        method, path = (await self.fill(one.asked)).split(" ", 1)
        who = self.ann if "api-keys" in one.asked else self.running.http
        if one.form is None:
            return await who.request(method, path, json=await self.fill(one.body))
        parts = [
            f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
            for name, value in (await self.fill(one.form)).items()
        ]
        headers = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
        return await who.request(method, path, content=f"{''.join(parts)}--{BOUNDARY}--\r\n", headers=headers)


@asynccontextmanager
async def scene(vault: Vault | None = None) -> AsyncIterator[Scene]:
    passwords = Passwords(Cost(memory_kib=64))
    async with orchestrator(
        policy=Policy(require_approval=True), vault=vault, passwords=passwords
    ) as running:
        await running.save_config("small")
        made = await running.http.post("/api/admin/users", json={"name": "ann", "password": PASSWORD})
        team = await running.http.post("/api/teams", json={"name": "vision"})
        worker = await running.worker(saves_on_request=["command"], validates_on_request=["command"])
        job = await running.submit()
        offer = await worker.take()
        await worker.report(offer, "running", progress={"step": 3})
        async with running.as_user(None) as ann:
            ann.headers["origin"] = running.listening.url
            assert (
                await ann.post("/api/login", json={"name": "ann", "password": PASSWORD})
            ).status_code == 200
            known = {"user": made.json()["id"], "team": team.json()["id"], "job": job["job_id"]}
            yield Scene(running, ann, known)


def trouble(one: Documented, answer: httpx2.Response) -> str:
    if answer.status_code != one.status:
        return f"{answer.status_code} {answer.text[:300]}"
    if one.says and one.says not in answer.text:
        return f"does not say {one.says}: {answer.text[:300]}"
    missing = [name for name in one.names if name not in answer.json()]
    return f"has no {missing}: {answer.text[:300]}" if missing else ""


@pytest.mark.parametrize("section", [name for name in SECTIONS if name != "ALL"])
async def test_every_request_of_the_guides_is_understood_or_says_what_to_ask(
    section: str, tmp_path: Path
) -> None:
    async with scene(SealedVault.at(tmp_path / "key")) as here:
        wrong = []
        for one in sorted(getattr(documented, section), key=lambda row: row.leaves):
            problem = trouble(one, await here.ask(one))
            if problem:
                wrong.append(f"{one.about}: {one.asked}: {problem}")
        assert not wrong, "\n".join(wrong)


def shape(asked: str) -> str:
    return re.sub(r"\{\w+\}", "{}", asked.partition("?")[0])


def test_every_older_name_is_one_that_a_guide_has() -> None:
    literal = {re.sub(r"/(1|2|replicate|okta)(?=/|$)", "/{}", shape(one.asked)) for one in documented.ALL}
    rest = {shape(one.asked) for one in OLDER_NAMES} - literal
    assert rest <= ASKED_ELSEWHERE, rest - ASKED_ELSEWHERE


ASKED_ELSEWHERE = {
    "POST /api/auth/login",
    "POST /api/auth/logout",
    "POST /api/auth/change-password",
    "GET /api/training/events/stream",
    "POST /api/cloud/notifications/channels/{}/test",
    "DELETE /api/orgs/{}/teams/{}",
    "GET /api/audit/export-config",
    "POST /api/users/me/credentials",
    "GET /api/users/{}/credentials",
}
"""Their sisters of another method are asked above, or a test of their own asks them."""


def test_nothing_can_be_done_by_an_older_name_alone() -> None:
    ours = {f"{row.method} {row.path}": row for row in ROUTES}
    for one in OLDER_NAMES:
        assert bool(one.means) + bool(one.instead) + bool(one.does) == 1, one.asked
        assert not one.means or one.means in ours, one.asked
        assert one.asked == one.means or one.asked not in ours, one.asked


async def test_who_may_not_do_it_may_not_do_it_by_an_older_name_either() -> None:
    async with scene() as here:
        refused = {
            "POST /api/users": "admin.users",
            "POST /api/orgs/1/quotas": "admin.limits",
            "POST /api/cloud/replicate/submit": "queue.submit",
            "POST /api/training/stop": "jobs.cancel",
            "GET /api/audit/user/u_1": "admin.audit",
        }
        async with here.running.as_user(await here.running.token("notifications.own")) as nobody:
            for asked, permission in refused.items():
                method, path = asked.split(" ")
                answer = await nobody.request(method, path)
                assert (answer.status_code, answer.json()["permission"]) == (403, permission), asked
        async with here.running.as_user(None) as stranger:
            assert (await stranger.post("/api/queue/process")).status_code == 401
        other = await here.ann.post(f"/api/cloud/jobs/{here.known['job']}/cancel")
        assert (other.status_code, other.json()["code"]) == (403, "not_your_job")
        private = (await here.running.submit(visibility="private"))["job_id"]
        unseen = await here.ann.get(f"/api/cloud/jobs/{private}/logs")
        assert (unseen.status_code, unseen.json()["detail"]) == (404, f"There is no job {private}.")
        for asked in (f"/api/cloud/jobs/{private}/cancel", f"/api/approvals/requests/{private}/approve"):
            unseen = await here.ann.post(asked)
            assert (unseen.status_code, unseen.json()["detail"]) == (404, f"There is no job {private}."), (
                asked
            )
        both = await here.ann.post(
            "/api/approvals/requests/bulk-approve", json={"request_ids": [await here.blocked()]}
        )
        assert (both.json()["successful"], both.json()["failed"]) == (0, 1), "never oneself"
        kinds = [one["event_type"] for one in (await here.running.get("/api/audit"))["entries"]]
        assert "job.approved" not in kinds


async def test_an_act_by_an_older_name_is_the_same_act_in_the_audit_log() -> None:
    async with scene() as here:
        blocked = await here.blocked()
        await here.running.post(f"/api/approvals/requests/{blocked}/approve", {"notes": "go on"})
        await here.running.http.post("/api/quotas", json={"quota_type": "cost_daily", "limit_value": 12.5})
        (quota,) = (await here.running.get("/api/quotas"))["quotas"]
        assert (quota["kind"], quota["scope"], quota["ceiling"]) == ("money_day", "each", 12_500_000)
        assert (quota["action"], quota["limit_value"]) == ("refuse", 12.5)
        entries = (await here.running.get("/api/audit"))["entries"]
        assert {"job.approved", "quota.set"} <= {one["event_type"] for one in entries}
        events = (await here.running.get(f"/api/jobs/{blocked}/events"))["events"]
        assert "go on" in str(events)


async def test_a_misspelt_field_is_told_beside_older_words_too() -> None:
    async with scene() as here:
        older = {"quota_type": "concurrent_jobs", "limit_value": 5, "nonsense": 1}
        for path in ("/api/quotas", "/api/orgs/1/quotas"):
            refused = await here.running.http.post(path, json=older)
            assert (refused.status_code, "nonsense" in refused.json()["detail"]) == (422, True), path
        refused = await here.running.http.post("/api/quotas", json={"kind": "gpus", "scope": "all"})
        assert (refused.status_code, "ceiling" in refused.json()["detail"]) == (422, True)


async def test_a_job_that_is_not_named_is_the_callers_only_one() -> None:
    async with scene() as here:
        assert (await here.ann.get("/api/training/status")).json() == {"status": "idle", "job_id": None}
        nothing = await here.ann.post("/api/training/stop")
        assert (nothing.status_code, nothing.json()["detail"]) == (409, "No job of yours is running.")
        second = await here.running.worker("gpu-2")
        await here.running.submit()
        await second.take()
        several = await here.running.http.post("/api/training/stop")
        assert several.status_code == 409
        assert here.known["job"] in several.json()["jobs"]
        named = await here.running.http.post(
            "/api/training/cancel", content=f"job_id={here.known['job']}", headers=FORM
        )
        assert named.json()["job_id"] == here.known["job"]


FORM = {"content-type": "application/x-www-form-urlencoded"}


async def test_a_form_that_cannot_be_read_is_told() -> None:
    async with scene() as here:
        ask = here.running.http.post
        in_parts = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
        part = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="x"; filename="y"\r\n\r\nz\r\n--{BOUNDARY}--\r\n'
        assert (await ask("/api/training/start", content=part, headers=in_parts)).status_code == 400
        many = "".join(f"\r\n--{BOUNDARY}\r\n\r\n" for _ in range(1100))
        assert (await ask("/api/training/start", content=many, headers=in_parts)).status_code == 400
        many = "&".join(f"a{at}=1" for at in range(600))
        assert (await ask("/api/training/start", content=many, headers=FORM)).status_code == 400
        assert (await ask("/api/training/start", content=b"\xff=\xff", headers=FORM)).status_code == 400
        answer = await ask(
            "/api/training/start",
            content="--model_family=flux&--data_backend_config=config/once.json",
            headers=FORM,
        )
        assert (answer.status_code, "dataloader" in answer.json()["next"]) == (410, True)


async def test_the_wait_is_told_in_seconds_and_whose_jobs_there_are() -> None:
    async with scene() as here:
        waiting = (await here.running.submit())["job_id"]
        place = await here.running.get(f"/api/queue/position/{waiting}")
        assert place["position"] == 1
        stats = await here.running.get("/api/queue/stats")
        assert stats["by_status"]["pending"] == 1
        assert sum(stats["by_user"].values()) == 2
        assert (stats["workers"]["total_workers"], stats["workers"]["busy_workers"]) == (1, 1)
        assert stats["local"] is None
        listed = await here.running.get("/api/queue", status="pending")
        assert [job["id"] for job in listed["jobs"]] == [waiting]
        listed = await here.running.get("/api/queue", status="running")
        assert [job["id"] for job in listed["jobs"]] == [here.known["job"]]
        wrong = await here.running.http.get("/api/queue?status=nonsense")
        assert wrong.status_code == 422


def test_the_document_has_every_older_name_with_what_it_means() -> None:
    text = (ROOT / "docs" / "older-names.md").read_text()
    lines = dict(re.findall(r"^\| `([A-Z]+ /[^`]+)` \| (.*) \|$", text, re.MULTILINE))
    assert {one.asked for one in OLDER_NAMES} == set(lines)
    for one in OLDER_NAMES:
        said = one.instead or (f"`{one.means}`" if one.means and one.means != one.asked else "")
        assert said in lines[one.asked], one.asked
