"""The matrix once more with a team: every route about a job for its owner, a teammate, its lead and a stranger to it.

Whoever may not see a job is answered word for word as if there were none, whatever they would do to it.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct

from devtools.fuzz.in_process_server import Headers, InProcessServer
from devtools.fuzz.job_states import MadeJob, make_job
from simpletuner_fleet.core.jobs.job import JobState
from simpletuner_fleet.core.people.visibility import Visibility
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.http.application import ROUTES
from simpletuner_fleet.http.edge.routes import Route
from tests.attacks.matrix.bodies import request_for
from tests.attacks.matrix.rules import RULES

LEADS = frozenset(
    {"POST /api/queue/{id}/priority", "POST /api/queue/{id}/approve", "POST /api/queue/{id}/reject"}
)
DECIDES = frozenset({"POST /api/approvals/{id}/approve", "POST /api/approvals/{id}/reject"})
NOWHERE = "j_0000000000000000000000nothing"


class Lab(Struct):
    """Ann belongs to the lab, tom too; lea leads it. Fay leads a team of her own and sees nothing of the lab."""

    server: InProcessServer
    people: dict[str, Headers]


@asynccontextmanager
async def a_lab(folder: Path) -> AsyncIterator[Lab]:
    policy = Policy(require_approval=True, default_visibility=Visibility.TEAM)
    server = await InProcessServer(folder / "server", 1, policy).open()
    try:
        people = {name: await server.user(name, "member") for name in ("ann", "tom", "lea", "fay")}
        for team, members in (
            ("lab", {"ann": "member", "tom": "viewer", "lea": "lead"}),
            ("other", {"fay": "lead"}),
        ):
            await server.good("POST", "/api/teams", {"name": team})
            for name, role in members.items():
                await server.good("PUT", f"/api/teams/{team}/members/{name}", {"role": role})
        people = {name: await server.log_in(name) for name in people}
        await server.worker("gpu")
        yield Lab(server, people)
    finally:
        await server.close()


def of_people(row: Route) -> bool:
    return f"{row.method} {row.path}" in RULES and not row.path.startswith("/api/workers/")


async def answered(lab: Lab, row: Route, who: str, job: MadeJob) -> tuple[int, bytes]:
    target, body, more = request_for(row, job, "m_none")
    answer = await lab.server.ask(row.method, target, body, {**more, **lab.people[who]})
    return answer.status, answer.body


def expected(route: str, who: str, state: JobState) -> int:
    rule = RULES[route]
    if who == "fay":
        return 404
    if route in LEADS:
        return rule.answer(state) if who == "lea" else 403
    if rule.own_only and who == "tom":
        return 403
    if route in DECIDES and state is JobState.BLOCKED and who != "lea":
        return 403
    return rule.answer(state)


def test_every_route_about_a_job_of_a_team(tmp_path: Path) -> None:
    async def story() -> list[str]:
        wrong: list[str] = []
        async with a_lab(tmp_path) as lab:
            for row in filter(of_people, ROUTES):
                route = f"{row.method} {row.path}"
                if "{manifest_id}" in row.path:
                    continue
                for who in ("fay", "tom", "ann", "lea"):
                    for state in (JobState.BLOCKED, JobState.FAILED):
                        job = await make_job(lab.server, state, lab.people["ann"], lab.server.workers["gpu"])
                        status, body = await answered(lab, row, who, job)
                        wanted = expected(route, who, state)
                        # A permission that nobody of the lab holds is refused before anything is looked up.
                        if who == "fay" and route in LEADS and status == 403:
                            wanted = 403
                        if status != wanted:
                            wrong.append(f"{route} by {who}, {state}: {status}, not {wanted}: {body[:200]!r}")
        return wrong

    assert asyncio.run(story()) == []


def test_what_cannot_be_seen_is_answered_as_what_is_not_there(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_lab(tmp_path) as lab:
            job = await make_job(lab.server, JobState.FAILED, lab.people["ann"], lab.server.workers["gpu"])
            for row in filter(of_people, ROUTES):
                hidden = await answered(lab, row, "fay", job)
                absent = await answered(lab, row, "fay", MadeJob(NOWHERE, JobState.FAILED))
                said = absent[1].replace(NOWHERE.encode(), job.id.encode())
                assert hidden == (absent[0], said), (row.method, row.path)

    asyncio.run(story())


def test_no_list_count_or_name_tells_of_another_teams_things(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_lab(tmp_path) as lab:
            server, ann, fay = lab.server, lab.people["ann"], lab.people["fay"]
            job = await make_job(server, JobState.QUEUED, ann, server.workers["gpu"])
            await server.config("secret-recipe", ann)
            dataset = await server.dataset("secret-faces", ann)
            hers = await server.ask("GET", f"/api/data/{dataset}", None, ann)
            assert hers.status == 200

            for path in (
                "/api/jobs",
                "/api/queue",
                "/api/queue/me",
                "/api/configs",
                "/api/data",
                "/api/teams",
            ):
                seen = (await server.ask("GET", path, None, fay)).body
                for name in (job.id, "secret-recipe", "secret-faces", dataset, "lab"):
                    assert name.encode() not in seen, (path, name)
                assert job.id.encode() in (await server.ask("GET", "/api/jobs", None, ann)).body
            for page in ("/", "/jobs", "/fleet", "/configs", "/datasets", "/train", "/teams"):
                seen = (await server.ask("GET", page, None, fay)).body
                for name in ("secret-recipe", "secret-faces", job.id, "lab<"):
                    assert name.encode() not in seen, (page, name)
            assert (await server.ask("GET", f"/jobs/{job.id}", None, fay)).status == 404
            counts = json.loads((await server.ask("GET", "/api/queue/stats", None, fay)).body)
            assert (counts["total"], counts["by_reason"]) == (0, {})
            assert json.loads((await server.ask("GET", "/api/queue/stats", None, ann)).body)["total"] == 1

            for path in ("/api/configs/secret-recipe", f"/api/data/{dataset}", "/api/teams/lab"):
                assert (await server.ask("GET", path, None, fay)).status == 404
            named = {"config_name": "secret-recipe", "target": "worker"}
            answer = await server.ask("POST", "/api/queue/submit", named, fay)
            assert answer.status == 404
            assert b"no config 'secret-recipe'" in answer.body
            recipe = {"trainer": "command", "settings": {"command": ["true"]}}
            inline = {"config": recipe, "target": "worker"}
            waits = await server.ask("POST", "/api/queue/submit", {**inline, "depends_on": [job.id]}, fay)
            assert waits.status == 422
            assert b"There is no job" in waits.body
            needs = await server.ask(
                "POST", "/api/queue/submit", {**inline, "datasets": {"faces": dataset}}, fay
            )
            assert needs.status == 422
            assert b"There is no dataset" in needs.body
            taken = await server.ask("PUT", "/api/configs/secret-recipe", recipe, fay)
            assert taken.status == 409
            assert b"ann" not in taken.body
            assert (await server.ask("DELETE", "/api/configs/secret-recipe", None, fay)).status == 404
            foreign = await server.ask("POST", "/api/queue/submit", {**inline, "team": "lab"}, fay)
            assert foreign.status == 404
            assert b"There is no team 'lab'" in foreign.body

    asyncio.run(story())


def test_a_dataset_of_another_team_is_found_on_no_page_and_not_by_pushing_it_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_lab(tmp_path) as lab:
            server, ann, fay = lab.server, lab.people["ann"], lab.people["fay"]
            dataset = await server.dataset("secret-faces", ann)
            used = await server.submit(ann, "gpu", datasets={"faces": dataset})
            bare = dataset.removeprefix("sha256:")
            content = hashlib.sha256(b"a picture of secret-faces").hexdigest()
            looks = (f"/datasets/{bare}", f"/datasets/{bare}?show=files", f"/datasets/{dataset}")
            for path in (*looks, f"/datasets/{bare}/pictures/{content}", f"/api/data/{dataset}"):
                hidden = await server.ask("GET", path, None, fay)
                absent = await server.ask("GET", path.replace(bare, "0" * 64), None, fay)
                said = absent.body.replace(b"0" * 64, bare.encode())
                assert (hidden.status, hidden.body) == (404, said), path
            seen = await server.ask("GET", looks[0], None, lab.people["tom"])
            assert seen.status == 200
            assert used.encode() in seen.body
            assert b"secret-faces" in (await server.ask("GET", "/datasets", None, lab.people["tom"])).body
            assert (
                used.encode() not in (await server.ask("GET", f"/api/jobs?dataset={dataset}", None, fay)).body
            )
            assert used.encode() in (await server.ask("GET", f"/api/jobs?dataset={dataset}", None, ann)).body
            for who in ("fay", "tom"):
                assert (await server.ask("DELETE", f"/api/data/{dataset}", None, lab.people[who])).status in (
                    403,
                    404,
                )

            # The same folder pushed by a stranger neither renames it nor says whose it is.
            again = await server.ask("POST", "/api/data", {"id": dataset, "name": "mine-now"}, fay)
            assert again.status == 409
            assert b"ann" not in again.body
            known = json.loads((await server.ask("GET", f"/api/data/{dataset}", None, ann)).body)
            assert (known["name"], known["visibility"]) == ("secret-faces", "team")

    asyncio.run(story())


def test_who_leaves_a_team_sees_its_things_no_more_and_their_tokens_neither(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_lab(tmp_path) as lab:
            server, ann = lab.server, lab.people["ann"]
            job = await make_job(server, JobState.QUEUED, ann, server.workers["gpu"])
            own = {"name": "tom's", "permissions": ["jobs.read"]}
            made = await server.good("POST", "/api/me/tokens", own, lab.people["tom"])
            token = {"authorization": f"Bearer {made['token']}"}
            looks = (lab.people["tom"], token)
            assert [(await server.ask("GET", f"/api/jobs/{job.id}", None, one)).status for one in looks] == [
                200
            ] * 2
            await server.good("DELETE", "/api/teams/lab/members/tom", None, lab.people["lea"])
            assert [(await server.ask("GET", f"/api/jobs/{job.id}", None, one)).status for one in looks] == [
                404
            ] * 2

            refused = await server.ask("POST", "/api/me/tokens", {**own, "permissions": ["admin.users"]}, ann)
            assert refused.status == 403
            hers = await server.good(
                "POST", "/api/me/tokens", {"name": "ci", "permissions": ["jobs.read", "jobs.cancel"]}, ann
            )
            hers_headers = {"authorization": f"Bearer {hers['token']}"}
            of_lea = await make_job(server, JobState.QUEUED, lab.people["lea"], server.workers["gpu"])
            for job_id, status in ((of_lea.id, 403), (job.id, 200)):
                answer = await server.ask("POST", f"/api/jobs/{job_id}/cancel", None, hers_headers)
                assert answer.status == status, answer

    asyncio.run(story())
