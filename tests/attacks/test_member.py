"""A member who would be more: others' configs, datasets and secrets, and what an administrator does with them."""

from typing import Any

import httpx2
import pytest

from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.store.sealing import SealedVault
from tests.attacks.people import people
from tests.http.api_kit import CPU_CONFIG, Agent
from tests.http.data_kit import PETS, ask, dataset_id, manifest_of, name, push
from tests.http.data_kit import put as send
from tests.http.upload_kit import sha

EVIL = {
    "trainer": "command",
    "settings": {"command": ["sh", "-c", "cat admin_token"]},
    "resources": {"gpus": 0},
}


async def put(client: httpx2.AsyncClient, path: str, body: Any, expect: int = 200) -> Any:
    answer = await client.put(path, json=body)
    assert answer.status_code == expect, answer.text
    return answer.json()


async def test_a_member_overwrites_and_deletes_no_config_of_another() -> None:
    async with people() as here:
        mallory = await here.log_in("mallory", "member")
        await here.running.save_config("train")
        refused = await put(mallory, "/api/configs/train", EVIL, expect=403)
        assert refused["code"] == "not_yours"
        assert "belongs to admin" in refused["detail"]
        assert (await mallory.delete("/api/configs/train")).status_code == 403
        stored = await here.running.get("/api/configs/train")
        assert (stored["version"], stored["settings"]) == (1, CPU_CONFIG["settings"])


async def test_a_config_stays_its_owners_and_an_admin_stands_above() -> None:
    async with people() as here:
        alice, bob = await here.log_in("alice", "member"), await here.log_in("bob", "member")
        await put(alice, "/api/configs/hers", CPU_CONFIG)
        await put(bob, "/api/configs/hers", EVIL, expect=403)
        other = {**CPU_CONFIG, "env": {"A": "1"}}
        by_admin = await put(here.running.http, "/api/configs/hers", other)
        assert by_admin["version"] == 2
        hers = await put(alice, "/api/configs/hers", CPU_CONFIG)
        assert hers["version"] == 3, "it is still hers after the admin has helped"
        assert (await alice.delete("/api/configs/hers")).status_code == 200
        await put(bob, "/api/configs/hers", CPU_CONFIG)
        await put(alice, "/api/configs/hers", CPU_CONFIG, expect=403)


async def test_an_approval_that_was_refused_or_never_given_is_not_got_round_by_trying_again() -> None:
    """A member's own job, rejected or cancelled before anybody approved it, waits again: also the retry of a retry."""
    async with people(policy=Policy(require_approval=True)) as here:
        mallory = await here.log_in("mallory", "member")
        rejected, cancelled = [
            (await mallory.post("/api/queue/submit", json={"config": CPU_CONFIG})).json()["job_id"]
            for _ in range(2)
        ]
        await here.running.post(f"/api/queue/{rejected}/reject", {"reason": "too dear"})
        assert (await mallory.post(f"/api/jobs/{cancelled}/cancel")).status_code == 200
        for job in (rejected, cancelled):
            for _ in range(2):
                again = (await mallory.post(f"/api/jobs/{job}/retry")).json()
                assert (again["status"], again["explain"]["code"]) == ("blocked", "APPROVAL_REQUIRED")
                assert (await mallory.post(f"/api/queue/{again['id']}/approve")).status_code == 403
                job = again["id"]
                await mallory.post(f"/api/jobs/{job}/cancel")


async def test_a_submission_by_name_says_which_version_by_whom_it_runs() -> None:
    async with people() as here:
        alice = await here.log_in("alice", "member")
        await put(alice, "/api/configs/hers", CPU_CONFIG)
        answer = await here.running.submit(config_name="hers", idempotency_key="k")
        assert answer["config"]["name"] == "hers"
        assert (answer["config"]["version"], answer["config"]["saved_by"]) == (1, "alice")
        again = await here.running.submit(config_name="hers", idempotency_key="k")
        assert again["config"] == answer["config"]
        assert (await here.running.submit())["config"] is None
        entries = (
            await here.running.get("/api/audit", target_id=answer["job_id"], event_type="job.submitted")
        )["entries"]
        assert entries[0]["details"]["config_version"] == 1
        assert entries[0]["details"]["config_by"] == answer["config"]["saved_by_id"]


async def test_what_a_member_wrote_does_not_run_on_the_servers_machine_because_an_admin_submits_it() -> None:
    async with people(local_enabled=True) as here:
        mallory = await here.log_in("mallory", "member")
        await put(mallory, "/api/configs/bait", EVIL)
        by_name = await here.running.submit(config_name="bait")
        assert (await here.running.job(by_name["job_id"]))["target"] == "worker"
        own = await here.running.submit(config=EVIL)
        assert (await here.running.job(own["job_id"]))["target"] == "auto"
        chosen = await here.running.submit(config_name="bait", target="local")
        assert (await here.running.job(chosen["job_id"]))["target"] == "local"
        assert chosen["config"]["saved_by"] == "mallory", "who chooses it is entries whose it is"


async def test_a_member_neither_deletes_nor_renames_a_dataset_of_another() -> None:
    async with people() as here:
        alice, mallory = await here.log_in("alice", "member"), await here.log_in("mallory", "member")
        await push(alice, PETS, "pets")
        assert (await mallory.delete(f"/api/data/{dataset_id(PETS)}")).status_code == 403
        await push(mallory, PETS, "mine-now")
        listed = (await here.running.get("/api/data"))["datasets"]
        assert [(one["name"], one["created_by"]) for one in listed] == [("pets", "alice")]
        await push(alice, PETS, "cats-and-dogs")
        assert (await here.running.get("/api/data"))["datasets"][0]["name"] == "cats-and-dogs"
        assert (await alice.delete(f"/api/data/{dataset_id(PETS)}")).status_code == 200


async def test_nobody_claims_a_file_of_a_dataset_by_its_digest_alone() -> None:
    """What another has sent and no dataset names yet is not the claimant's before they have sent it themselves."""
    async with people() as here:
        alice, mallory = await here.log_in("alice", "member"), await here.log_in("mallory", "member")
        private = b"what only alice has"
        assert (await send(alice, private, 0, len(private))).json()["complete"]
        asked = await ask(mallory, private)
        assert [one["sha256"] for one in asked.json()["missing"]] == [sha(private)]
        stolen = {"loot": private}
        manifest = manifest_of(stolen)
        assert (await send(mallory, manifest, 0, len(manifest))).json()["complete"]
        refused = await name(mallory, stolen)
        assert (refused.status_code, refused.json()["code"]) == (409, "objects_missing")
        assert (await ask(alice, private)).json()["missing"] == []
        await push(mallory, stolen)
        assert (await ask(alice, private)).json()["missing"] == [], (
            "a whole dataset names it: everybody may read it"
        )


async def test_nobody_claims_a_file_of_a_private_dataset_by_its_digest_alone() -> None:
    """Who has sent it themselves may name it, beside its owner."""
    async with people() as here:
        alice, mallory = await here.log_in("alice", "member"), await here.log_in("mallory", "member")
        private = b"what only alice has"
        await push(alice, {"mine": private}, visibility="private")
        assert [one["sha256"] for one in (await ask(mallory, private)).json()["missing"]] == [sha(private)]
        stolen = {"loot": private}
        manifest = manifest_of(stolen)
        assert (await send(mallory, manifest, 0, len(manifest))).json()["complete"]
        refused = await name(mallory, stolen)
        assert (refused.status_code, refused.json()["code"]) == (409, "objects_missing")
        await push(mallory, stolen, visibility="private")
        assert (await ask(alice, private)).json()["missing"] == []
        bob = await here.log_in("bob", "member")
        assert len((await ask(bob, private)).json()["missing"]) == 1


SECRET = {
    "trainer": "command",
    "settings": {"command": ["true"]},
    "resources": {"gpus": 0},
    "secrets": {"T": "hf"},
}


@pytest.fixture
def vault() -> SealedVault:
    return SealedVault(lambda: b"k" * 32, lambda: b"k" * 32)


async def test_whom_a_secret_is_for_is_read_as_an_id_before_a_name(vault: SealedVault) -> None:
    async with people(vault=vault) as here:
        alice, mallory = await here.log_in("alice", "member"), await here.log_in("mallory", "member")
        admin = here.running
        ids = {one["name"]: one["id"] for one in (await admin.get("/api/admin/users"))["users"]}
        team = await admin.post("/api/teams", {"name": ids["alice"]})
        await put(admin.http, f"/api/teams/{team['id']}/members/{ids['mallory']}", {"role": "member"})
        await put(admin.http, "/api/secrets/hf", {"value": "hf_canary", "users": [ids["alice"]]})
        assert (await alice.post("/api/queue/submit", json={"config": SECRET})).status_code == 200
        assert (await mallory.post("/api/queue/submit", json={"config": SECRET})).status_code == 422


async def test_a_secret_is_for_those_it_names(vault: SealedVault) -> None:
    async with people(vault=vault) as here:
        alice, mallory = await here.log_in("alice", "member"), await here.log_in("mallory", "member")
        await put(here.running.http, "/api/secrets/hf", {"value": "hf_canary", "users": ["alice"]})
        refused = await mallory.post("/api/queue/submit", json={"config": SECRET})
        assert refused.status_code == 422
        assert "reserved for other users" in refused.text
        assert (await alice.post("/api/queue/submit", json={"config": SECRET})).status_code == 200
        await put(here.running.http, "/api/secrets/hf", {"value": "hf_canary2"})
        assert (await mallory.post("/api/queue/submit", json={"config": SECRET})).status_code == 422, (
            "it stays so"
        )
        await put(here.running.http, "/api/secrets/hf", {"value": "hf_canary3", "users": []})
        assert (await mallory.post("/api/queue/submit", json={"config": SECRET})).status_code == 200
        unknown = await put(
            here.running.http, "/api/secrets/hf", {"value": "x", "users": ["nobody"]}, expect=422
        )
        assert "nobody" in unknown["detail"]


async def test_every_secret_that_a_job_gets_is_in_the_audit_log(vault: SealedVault) -> None:
    async with people(vault=vault) as here:
        await put(here.running.http, "/api/secrets/hf", {"value": "hf_canary"})
        agent: Agent = await here.running.worker()
        job = await here.running.submit(config=SECRET)
        offer = await agent.take()
        assert offer["secrets"] == {"T": "hf_canary"}
        entries = (await here.running.get("/api/audit", event_type="secret.given"))["entries"]
        assert [(one["target_id"], one["details"]["job_id"]) for one in entries] == [("hf", job["job_id"])]
        assert entries[0]["details"]["worker_name"] == "gpu-1"
        assert "canary" not in str(await here.running.get("/api/audit"))


async def test_a_token_never_holds_more_than_the_user_it_acts_for() -> None:
    async with people() as here:
        await here.log_in("other boss", "admin")
        boss = await here.log_in("boss", "admin")
        made = await boss.post(
            "/api/admin/tokens",
            json={"name": "ci", "permissions": ["admin.users", "queue.read", "configs.write"]},
        )
        token = made.json()
        async with here.running.as_user(token["token"]) as ci:
            assert (await ci.get("/api/admin/users")).status_code == 200
            user = next(
                one for one in (await here.running.get("/api/admin/users"))["users"] if one["name"] == "boss"
            )
            await here.running.http.patch(f"/api/admin/users/{user['id']}", json={"role": "viewer"})
            assert (await ci.get("/api/admin/users")).status_code == 403
            assert (await ci.get("/api/queue")).status_code == 200
            await put(ci, "/api/configs/c", CPU_CONFIG, expect=403)
            await here.running.http.patch(f"/api/admin/users/{user['id']}", json={"disabled": True})
            for path in ("/api/queue", "/api/whoami", "/api/teams"):
                assert (await ci.get(path)).status_code == 401
            await here.running.http.patch(f"/api/admin/users/{user['id']}", json={"disabled": False})
            assert (await ci.get("/api/queue")).status_code == 200


async def test_what_a_token_saves_is_its_users() -> None:
    async with people() as here:
        boss = await here.log_in("boss", "admin")
        made = (
            await boss.post(
                "/api/admin/tokens", json={"name": "ci", "permissions": ["configs.write", "configs.read"]}
            )
        ).json()
        other = await here.running.token("configs.write", name="other")
        async with here.running.as_user(made["token"]) as ci, here.running.as_user(other) as stranger:
            await put(ci, "/api/configs/c", CPU_CONFIG)
            await put(stranger, "/api/configs/c", EVIL, expect=403)
            owner = (await here.running.get("/api/configs/c"))["owner"]
            assert owner == made["owner"]
            assert owner.startswith("u_")
