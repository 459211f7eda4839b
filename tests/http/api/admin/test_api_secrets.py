"""Secrets over HTTP: stored sealed, told to the worker that needs them, never shown."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from simpletuner_fleet.core.configs.bundle_diff import MOST_LISTED
from simpletuner_fleet.store.sealing import SealedVault
from simpletuner_fleet.store.sqlite import SqliteStore
from tests.http.api_kit import CPU_CONFIG, Running, orchestrator

CANARY = "hf_canary_0123456789"
WITH_SECRET = {**CPU_CONFIG, "secrets": {"HF_TOKEN": "hf-token"}}


@asynccontextmanager
async def with_vault(folder: Path, **more: Any) -> AsyncIterator[Running]:
    async with orchestrator(vault=SealedVault.at(folder / "secrets.key"), **more) as running:
        yield running


def contents(folder: Path) -> list[bytes]:
    return [file.read_bytes() for file in folder.iterdir()]


async def put(running: Running, value: str = CANARY, name: str = "hf-token") -> Any:
    answer = await running.http.put(f"/api/secrets/{name}", json={"value": value})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_secret_is_listed_by_name_and_age_and_never_shown(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "fleet.db")
    async with with_vault(tmp_path, store=store) as running:
        assert await running.get("/api/secrets") == {"secrets": [], "unreadable": []}
        assert (await put(running))["version"] == 1
        again = await put(running, CANARY + "-2")
        assert (again["name"], again["version"], again["created_by"]) == ("hf-token", 2, "t_admin")
        listed = await running.http.get("/api/secrets")
        assert listed.json() == {"secrets": [again], "unreadable": []}
        audit = await running.http.get("/api/audit")
        assert "secret.saved" in audit.text
        assert CANARY not in audit.text + listed.text
        assert (await running.http.delete("/api/secrets/hf-token")).status_code == 200
        assert (await running.http.delete("/api/secrets/hf-token")).status_code == 404
        assert await running.get("/api/secrets") == {"secrets": [], "unreadable": []}
    await store.close()
    assert all(CANARY.encode() not in content for content in contents(tmp_path))


async def test_what_is_no_secret_is_refused_with_its_field(tmp_path: Path) -> None:
    async with with_vault(tmp_path) as running:
        for name, body, path in (
            ("hf-token", {"value": ""}, "$.value"),
            ("hf-token", {"value": "x" * 20_000}, "$.value"),
            ("-bad", {"value": "x"}, "$.name"),
        ):
            answer = await running.http.put(f"/api/secrets/{name}", json=body)
            assert answer.status_code == 422
            assert answer.json()["errors"][0]["path"] == path


async def test_a_job_that_wants_an_unknown_secret_is_told_which_and_what_to_do(tmp_path: Path) -> None:
    async with with_vault(tmp_path) as running:
        answer = await running.http.post("/api/queue/submit", json={"config": WITH_SECRET})
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["path"] == "$.secrets.HF_TOKEN"
        assert "simpletuner secrets set hf-token" in answer.json()["next"]
        await put(running)
        job = await running.submit(config=WITH_SECRET)
        await running.post(f"/api/jobs/{job['job_id']}/cancel")
        await running.http.delete("/api/secrets/hf-token")
        assert (await running.http.post(f"/api/jobs/{job['job_id']}/retry")).status_code == 422


async def test_the_attempt_that_needs_it_is_given_the_newest_value(tmp_path: Path) -> None:
    async with with_vault(tmp_path) as running:
        await put(running)
        agent = await running.worker()
        job = await running.submit(config=WITH_SECRET)
        offer = await agent.take()
        assert offer["secrets"] == {"HF_TOKEN": CANARY}
        assert "HF_TOKEN" not in offer["env"]
        answer = await running.http.get(f"/api/jobs/{job['job_id']}")
        assert CANARY not in answer.text
        await put(running, CANARY + "-rotated")
        await agent.report(offer, "completed")
        await running.submit(config=WITH_SECRET)
        assert (await agent.take())["secrets"] == {"HF_TOKEN": CANARY + "-rotated"}


async def test_a_job_without_secrets_has_no_such_field(tmp_path: Path) -> None:
    async with with_vault(tmp_path) as running:
        await put(running)
        agent = await running.worker()
        await running.submit()
        assert not {"secrets", "missing_secrets"} & set(await agent.offer())


async def test_a_secret_deleted_meanwhile_is_named_to_the_worker(tmp_path: Path) -> None:
    async with with_vault(tmp_path) as running:
        await put(running)
        await running.submit(config=WITH_SECRET)
        await running.http.delete("/api/secrets/hf-token")
        offer = await (await running.worker()).offer()
        assert (offer["secrets"], offer["missing_secrets"]) == ({}, ["hf-token"])


async def test_an_older_agent_gets_its_flat_config_and_no_secrets(tmp_path: Path) -> None:
    async with with_vault(tmp_path) as running:
        await put(running)
        agent = await running.worker(trainers=None, attempts=None)
        await running.submit(config={"settings": {"--seed": 1}, "secrets": {"HF_TOKEN": "hf-token"}}, gpus=0)
        offer = await agent.offer()
        assert "secrets" not in offer
        assert offer["config"] == {"--seed": 1}


async def test_versions_of_a_config_are_compared_field_by_field(tmp_path: Path) -> None:
    async with with_vault(tmp_path) as running:
        for lr in (0.1, 0.2, 0.3):
            await running.save_config("c", {"--lr": lr, "seed": 1})
        newest = await running.get("/api/configs/c/diff")
        change = {"path": "$.settings.lr", "was": 0.2, "is": 0.3}
        counted = {"left_out": 0, "left_out_at_least": False}
        assert newest == {"name": "c", "from": 2, "to": 3, "changes": [change], **counted}
        chosen = await running.get("/api/configs/c/diff", **{"from": 1, "to": 2})
        assert chosen["changes"] == [{"path": "$.settings.lr", "was": 0.1, "is": 0.2}]
        assert (await running.get("/api/configs/c/diff", to=1))["changes"] == []
        missing = await running.http.get("/api/configs/c/diff?to=9")
        assert missing.status_code == 404
        assert "configs history c" in missing.json()["next"]
        assert (await running.http.get("/api/configs/none/diff")).status_code == 404
        assert (await running.http.get("/api/configs/c/diff?from=0")).status_code == 422


async def test_of_very_many_changes_and_differences_the_answers_list_the_first(tmp_path: Path) -> None:
    async with with_vault(tmp_path) as running:
        jobs = []
        for value in (0, 1):
            await running.save_config("c", {"x": [value] * (MOST_LISTED + 5)})
            jobs.append((await running.submit(config_name="c"))["job_id"])
        changes = await running.get("/api/configs/c/diff")
        assert (len(changes["changes"]), changes["left_out"]) == (MOST_LISTED, 5)
        comparison = await running.get("/api/compare", job=jobs)
        assert (len(comparison["differences"]), comparison["left_out"]) == (MOST_LISTED, 5)
