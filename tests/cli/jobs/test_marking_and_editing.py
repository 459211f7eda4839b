"""`jobs tag`, `note`, `act`, `edit` and `pin`, against an orchestrator in this process."""

import asyncio
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from simpletuner_fleet.ports import StoredManifest, Tx
from simpletuner_fleet.queries import explainer
from tests.cli.conftest import Result, Run
from tests.http.api_kit import ADMIN, GPU_CONFIG, Running, orchestrator

Asked = Any


@pytest.fixture
def said(run: Run, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """The command line in a thread, against an orchestrator in this loop."""

    async def ask(running: Running, *words: str) -> Result:
        monkeypatch.setenv("SIMPLETUNER_URL", running.listening.url)
        monkeypatch.setenv("SIMPLETUNER_API_TOKEN", ADMIN)
        return await asyncio.to_thread(run, "jobs", *words)

    return ask


async def waiting(running: Running, *names: str) -> list[str]:
    return [(await running.submit(config=GPU_CONFIG, name=name, target="worker"))["job_id"] for name in names]


async def test_tags_and_notes_are_written_and_taken_off_again(said: Asked) -> None:
    async with orchestrator() as running:
        (job_id,) = await waiting(running, "cats")
        tagged = await said(running, "tag", job_id, "paper", "v2")
        assert tagged.code == 0, tagged.err
        assert f"tags of {job_id}: paper, v2" in tagged.err
        fewer = await said(running, "tag", job_id, "--remove", "v2", "--json")
        assert fewer.json["tags"] == ["paper"]
        noted = await said(running, "note", job_id, "for the review")
        assert noted.code == 0, noted.err
        assert (await running.job(job_id))["note"] == "for the review"
        assert (await said(running, "note", job_id, "", "--json")).json["note"] == ""
        refused = await said(running, "tag", job_id, "no spaces here")
        assert refused.code != 0
        assert (await running.job(job_id))["tags"] == ["paper"]


async def test_an_act_on_all_matching_tells_their_number_first_and_does_it_for_that_number_only(
    said: Asked,
) -> None:
    async with orchestrator() as running:
        ids = await waiting(running, "cats", "cats", "dogs")
        first = await said(running, "act", "cancel", "--find", "cats")
        assert first.code == 0, first.err
        assert "2 jobs match; nothing was changed" in first.err
        assert (await running.job(ids[0]))["status"] == "queued"
        stale = await said(running, "act", "cancel", "--find", "cats", "--yes", "3")
        assert stale.code != 0
        assert (await running.job(ids[0]))["status"] == "queued"
        done = await said(running, "act", "cancel", "--find", "cats", "--yes", "2", "--json")
        assert done.json == {"done": 2, "refusals": [], "at_least": False}
        assert [(await running.job(one))["status"] for one in ids] == ["cancelled", "cancelled", "queued"]
        missing = await said(running, "act", "priority", "--yes", "1")
        assert missing.code == 2
        assert "no priority was given" in missing.err


async def test_a_waiting_job_is_edited_and_an_ended_one_is_not(said: Asked) -> None:
    async with orchestrator() as running:
        (job_id,) = await waiting(running, "cats")
        edited = await said(running, "edit", job_id, "--gpus", "3", "--label", "rack=r1", "--name", "owls")
        assert edited.code == 0, edited.err
        job = await running.job(job_id)
        assert (job["name"], job["requires"]["gpus"]) == ("owls", 3)
        assert job["requires"]["worker_labels"] == {"rack": "r1"}
        anywhere = await said(running, "edit", job_id, "--no-labels", "--json")
        assert anywhere.json["requires"]["worker_labels"] == {}
        await running.post(f"/api/jobs/{job_id}/cancel")
        late = await said(running, "edit", job_id, "--gpus", "1")
        assert late.code != 0
        assert (await running.job(job_id))["requires"]["gpus"] == 3


def _add(manifest: StoredManifest, tx: Tx) -> None:
    tx.add_manifest(manifest)


async def test_a_checkpoint_is_pinned_by_its_step_and_one_that_is_not_there_says_where_to_look(
    said: Asked,
) -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        job_id = (await running.submit())["job_id"]
        offer = await agent.take()
        plain = StoredManifest(
            id="m_1",
            job_id=job_id,
            attempt_id=offer["attempt_id"],
            attempt_number=1,
            epoch=offer["epoch"],
            kind="checkpoint",
            name="checkpoint-100",
            step=100,
            files=(),
            total_bytes=0,
            created_at=1.0,
            worker_name="gpu-1",
        )
        later = replace(plain, id="m_2", name="checkpoint-200", step=200)
        for one in (plain, later):
            await running.fleet.store.write(partial(_add, one))
        pinned = await said(running, "pin", job_id, "100")
        assert pinned.code == 0, pinned.err
        assert f"the checkpoint of step 100 of {job_id} is pinned" in pinned.err
        newest = await said(running, "pin", job_id, "--json")
        assert newest.json["id"] == "m_2"
        assert newest.json["pinned_by"]
        loose = await said(running, "pin", job_id, "100", "--remove", "--json")
        assert not loose.json["pinned_by"]
        none = await said(running, "pin", job_id, "300")
        assert none.code == 3
        assert f"simpletuner jobs artifacts {job_id}" in none.err


async def test_an_act_that_may_leave_out_matching_jobs_says_so(
    said: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explainer, "MOST_GROUPS", 2)
    async with orchestrator() as running:
        for number in range(3):
            await running.submit(worker_labels={"k": f"v{number}"})
        search = ("act", "cancel", "--reason", "NO_WORKERS")
        first = await said(running, *search)
        assert "at least 2 jobs match; nothing was changed" in first.err
        assert (await said(running, *search, "--json")).json == {"count": 2, "at_least": True}
        done = await said(running, *search, "--yes", "2")
        assert "done: 2 jobs" in done.err
        assert "Look at the list again" in done.err
        last = await said(running, *search, "--yes", "1")
        assert "done: 1 job" in last.err
        assert "Look at the list again" not in last.err
