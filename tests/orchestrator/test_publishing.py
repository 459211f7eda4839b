"""Publishing: opened with the job's end, tried until it is there, given up aloud, and never the job's own trouble."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import obstore
import pytest
from obstore.store import S3Store

from simpletuner_fleet.core.publishing import LONGEST_WAIT_S, MAX_TRIES, Publication
from simpletuner_fleet.orchestrator import publishing
from simpletuner_fleet.orchestrator.publishing import (
    FOLDERS_AT_ONCE,
    LANES,
    Places,
    Publisher,
    mend_waits,
    publish_once,
    try_all_due,
)
from simpletuner_fleet.ports import View
from simpletuner_fleet.storage.storage import Storage
from simpletuner_fleet.store import MemoryStore, SqliteStore
from simpletuner_fleet.store.sealing import SealedVault
from tests.delivery.receivers import until
from tests.http.api_kit import Running, orchestrator
from tests.http.upload_kit import Uploader, uploading
from tests.hub_server import TOKEN, HubServer
from tests.ready_databases import lay_sqlite
from tests.s3_server import KEY, SECRET

T = TypeVar("T")
MODEL = bytes(range(256)) * 400
FILES = {"pytorch_lora_weights.safetensors": MODEL, "README.md": b"# a model", "empty.safetensors": b""}
COMMAND = {"trainer": "command", "settings": {"command": ["true"]}, "resources": {"gpus": 0}}


@pytest.fixture
def hub() -> Iterator[HubServer]:
    server = HubServer()
    yield server
    server.close()


@pytest.fixture
def vault(tmp_path: Path) -> SealedVault:
    return SealedVault.at(tmp_path / "key")


async def completed(running: Running, publish: dict[str, Any] | None, status: str = "completed") -> Uploader:
    up = await uploading(running, config={**COMMAND, **({"publish": publish} if publish else {})})
    await up.send(*FILES.values())
    await up.manifest(None, FILES, kind="artifact", name="output")
    await up.agent.report(up.offer, status, exit_code=0 if status == "completed" else 1)
    return up


async def store_token(running: Running, value: str = TOKEN) -> None:
    answer = await running.http.put("/api/secrets/hub", json={"value": value})
    assert answer.status_code == 200, answer.text


async def reported(running: Running, up: Uploader) -> dict[str, Any]:
    answer: dict[str, Any] = await running.get(f"/api/jobs/{up.offer['job_id']}/publication")
    return answer


ON_HUB = {"to": "hf://someone/cats", "secret": "hub"}


async def test_a_completed_jobs_model_comes_to_the_hub_whole(hub: HubServer, vault: SealedVault) -> None:
    async with orchestrator(vault=vault) as running:
        await store_token(running)
        up = await completed(running, ON_HUB)
        assert (await reported(running, up))["state"] == "due"
        assert (await running.job(up.offer["job_id"]))["publication"] == await reported(running, up)
        places = Places(hub_url=hub.url)
        assert await publish_once(running.deps.storage, places) == 1
        publication = await reported(running, up)
        assert (publication["state"], publication["tries"]) == ("published", 1)
        assert publication["url"] == f"{hub.url}/someone/cats/commit/c1"
        assert hub.repositories["someone/cats"] == FILES
        assert hub.private["someone/cats"] is True
        assert await publish_once(running.deps.storage, places) == 0
        events = (await running.get(f"/api/jobs/{up.offer['job_id']}/events"))["events"]
        assert [one["event_type"] for one in events][-1] == "job.published"
        assert TOKEN not in str(events) + str(publication)


async def test_whoever_asks_need_not_wait_for_the_next_look(
    hub: HubServer, vault: SealedVault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "LOOK_S", 3600.0)
    async with orchestrator(vault=vault) as running:
        await store_token(running)
        up = await completed(running, None)
        publisher = running.deps.publisher = Publisher(running.deps.storage, Places(hub_url=hub.url))
        publisher.start()
        try:
            await running.post(f"/api/jobs/{up.offer['job_id']}/publish", ON_HUB)
            await until(lambda: hub.repositories.get("someone/cats") == FILES)
        finally:
            await publisher.stop()


async def test_an_organisation_and_a_repository_that_is_there_already_are_taken_and_content_is_not_sent_twice(
    hub: HubServer, vault: SealedVault
) -> None:
    async with orchestrator(vault=vault) as running:
        await store_token(running)
        up = await completed(running, {**ON_HUB, "to": "hf://lab/cats", "private": False})
        places = Places(hub_url=hub.url)
        await publish_once(running.deps.storage, places)
        sent = sum(count for what, count in hub.asked.items() if what.startswith("PUT /storage"))
        assert sent == 3
        await running.post(f"/api/jobs/{up.offer['job_id']}/publish")
        await publish_once(running.deps.storage, places)
        assert (await reported(running, up))["state"] == "published"
        assert hub.private["lab/cats"] is False
        assert sum(count for what, count in hub.asked.items() if what.startswith("PUT /storage")) == sent


async def test_a_token_that_may_only_write_to_a_repository_publishes_to_it_and_a_branch_is_made(
    hub: HubServer, vault: SealedVault
) -> None:
    async with orchestrator(vault=vault) as running:
        await store_token(running)
        hub.repositories, hub.branches, hub.makes_repositories = (
            {"someone/cats": {}},
            {"someone/cats": set()},
            False,
        )
        up = await completed(running, {**ON_HUB, "branch": "night"})
        await publish_once(running.deps.storage, Places(hub_url=hub.url))
        assert (await reported(running, up))["state"] == "published"
        assert hub.repositories["someone/cats"] == FILES
        assert hub.branches["someone/cats"] == {"night"}

        hub.repositories = {}
        await running.post(f"/api/jobs/{up.offer['job_id']}/publish")
        await publish_once(running.deps.storage, Places(hub_url=hub.url))
        publication = await reported(running, up)
        assert publication["state"] == "failed"
        assert "rights to create" in publication["error"]


async def test_a_hub_that_makes_another_repository_of_the_owner_is_asked_again(
    hub: HubServer, vault: SealedVault
) -> None:
    async with orchestrator(vault=vault) as running:
        await store_token(running)
        up = await completed(running, ON_HUB)
        hub.troubles = [(409, {})]
        hub.trouble_said = "Cannot create repo: another conflicting operation is in progress"
        await publish_once(running.deps.storage, Places(hub_url=hub.url))
        assert (await reported(running, up))["state"] == "due"
        assert not hub.repositories


async def test_weather_is_waited_out_as_long_as_the_hub_asks_and_the_job_stays_completed(
    hub: HubServer, vault: SealedVault
) -> None:
    async with orchestrator(vault=vault) as running:
        await store_token(running)
        up = await completed(running, ON_HUB)
        places = Places(hub_url=hub.url)
        hub.troubles = [(429, {"Retry-After": "300"})]
        await publish_once(running.deps.storage, places)
        publication = await reported(running, up)
        assert (publication["state"], publication["tries"]) == ("due", 1)
        assert "status 429" in publication["error"]
        running.clock.at += 299
        assert await publish_once(running.deps.storage, places) == 0
        running.clock.at += 2
        hub.troubles = [(503, {})]
        assert await publish_once(running.deps.storage, places) == 1
        assert (await running.job(up.offer["job_id"]))["status"] == "completed"
        running.clock.at += 3600
        await publish_once(running.deps.storage, places)
        assert (await reported(running, up))["state"] == "published"


async def test_a_wrong_token_is_given_up_at_once_said_and_may_be_asked_for_again(
    hub: HubServer, vault: SealedVault
) -> None:
    async with orchestrator(vault=vault) as running:
        await store_token(running, "hf_wrong")
        up = await completed(running, ON_HUB)
        places = Places(hub_url=hub.url)
        await publish_once(running.deps.storage, places)
        publication = await reported(running, up)
        assert (publication["state"], publication["tries"]) == ("failed", 1)
        assert "Invalid credentials" in publication["error"]
        assert (await running.job(up.offer["job_id"]))["status"] == "completed"
        events = (await running.get(f"/api/jobs/{up.offer['job_id']}/events"))["events"]
        assert events[-1]["event_type"] == "job.publish_failed"
        await store_token(running)
        await running.post(f"/api/jobs/{up.offer['job_id']}/publish")
        await publish_once(running.deps.storage, places)
        assert (await reported(running, up))["state"] == "published"


async def test_a_hub_that_is_never_there_is_given_up_in_the_end(vault: SealedVault) -> None:
    async with orchestrator(vault=vault) as running:
        await store_token(running)
        up = await completed(running, ON_HUB)
        for _ in range(MAX_TRIES):
            await publish_once(running.deps.storage, Places(hub_url="http://127.0.0.1:9"))
            running.clock.at += LONGEST_WAIT_S + 1
        assert (await reported(running, up))["state"] == "failed"
        assert (await reported(running, up))["tries"] == MAX_TRIES


async def test_a_clock_that_was_ahead_and_was_set_right_keeps_nothing_from_being_published(
    hub: HubServer, vault: SealedVault
) -> None:
    async with orchestrator(vault=vault) as running:
        await store_token(running)
        up = await completed(running, ON_HUB)
        places = Places(hub_url=hub.url)
        running.clock.at -= 86_400
        assert await publish_once(running.deps.storage, places) == 0
        await mend_waits(running.deps.fleet)
        assert await publish_once(running.deps.storage, places) == 1
        assert (await reported(running, up))["state"] == "published"


async def test_a_wait_that_a_restart_finds_is_kept_and_none_is_longer_than_the_longest(
    hub: HubServer, vault: SealedVault
) -> None:
    async with orchestrator(vault=vault) as running:
        await store_token(running)
        await completed(running, ON_HUB)
        places = Places(hub_url=hub.url)
        hub.troubles = [(429, {"Retry-After": "99999999"})]
        await publish_once(running.deps.storage, places)
        await mend_waits(running.deps.fleet)
        assert await publish_once(running.deps.storage, places) == 0
        running.clock.at += LONGEST_WAIT_S
        assert await publish_once(running.deps.storage, places) == 1


async def test_a_folder_of_the_servers_takes_it_and_without_one_that_is_said(tmp_path: Path) -> None:
    async with orchestrator() as running:
        up = await completed(running, {"to": "folder://models/cats"})
        root = tmp_path / "published"
        await publish_once(running.deps.storage, Places(folder_url=root.as_uri()))
        assert (await reported(running, up))["state"] == "published"
        folder = root / "models/cats"
        assert {
            str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()
        } == FILES
        await running.post(f"/api/jobs/{up.offer['job_id']}/publish", {"to": "folder://other"})
        await publish_once(running.deps.storage, Places())
        publication = await reported(running, up)
        assert publication["state"] == "failed"
        assert "--publish-url" in publication["error"]


async def test_a_job_that_failed_publishes_nothing() -> None:
    async with orchestrator() as running:
        up = await completed(running, {"to": "folder://x"}, status="failed")
        answer = await running.http.get(f"/api/jobs/{up.offer['job_id']}/publication")
        assert answer.status_code == 404
        assert (await running.job(up.offer["job_id"]))["publication"] is None
        refused = await running.http.post(
            f"/api/jobs/{up.offer['job_id']}/publish", json={"to": "folder://x"}
        )
        assert refused.status_code == 409


@pytest.mark.parametrize(
    ("publish", "path"),
    [
        ({"to": "hf://cats", "secret": "hub"}, "$.publish.to"),
        ({"to": "folder://../etc"}, "$.publish.to"),
        ({"to": "file:///etc"}, "$.publish.to"),
        ({"to": "hf://a/b"}, "$.publish.secret"),
        ({"to": "hf://a/b", "secret": "unknown"}, "$.publish.secret"),
        ({"to": "folder://x", "branch": "a/../b"}, "$.publish.branch"),
    ],
)
async def test_what_could_never_be_published_is_refused_when_it_is_submitted(
    publish: dict[str, Any], path: str
) -> None:
    async with orchestrator() as running:
        answer = await running.http.post("/api/queue/submit", json={"config": COMMAND, "publish": publish})
        assert answer.status_code == 422, answer.text
        assert answer.json()["errors"][0]["path"] == path


async def test_a_bucket_takes_it_under_the_name_that_was_asked_for(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    async with orchestrator() as running:
        up = await completed(running, {"to": "folder://cats"})
        root = f"s3://bucket/published?endpoint={s3_endpoint}"
        await publish_once(running.deps.storage, Places(folder_url=root))
        publication = await reported(running, up)
        assert (publication["state"], publication["url"]) == ("published", "s3://bucket/published/cats")
        bucket = S3Store(
            "bucket",
            prefix="published/cats",
            config={"region": "us-east-1", "endpoint": s3_endpoint},
            client_options={"allow_http": True},
        )
        for path, data in FILES.items():
            assert bytes((await obstore.get_async(bucket, path)).bytes()) == data


async def test_a_model_that_takes_for_ever_holds_up_no_other_destination(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What goes to the same place still goes one after the other: two at once would spoil each other's files."""
    begun: list[str] = []
    frozen = asyncio.Event()

    async def bring(storage: Storage, places: Places, publication: Publication) -> str:
        begun.append(publication.publish.to)
        if publication.publish.to.startswith("folder://slow"):
            await frozen.wait()
        return "file:///there"

    monkeypatch.setattr(publishing, "_publish", bring)
    async with orchestrator() as running:
        agent = await running.worker()
        paths = []
        for to in ("folder://slow/cats", "folder://slow/dogs", "folder://slow", "folder://swift"):
            await running.submit(config={**COMMAND, "publish": {"to": to}})
            offer = await agent.take()
            await agent.report(offer, "completed", exit_code=0)
            paths.append(f"/api/jobs/{offer['job_id']}/publication")
            running.clock.at += 1.0
        publisher = Publisher(running.deps.storage, Places())
        publisher.start()
        publisher.wake()
        try:
            await until(lambda: len(begun) == 2)
            await asyncio.sleep(0.2)
            assert begun == ["folder://slow/cats", "folder://swift"]
            assert [(await running.get(path))["state"] for path in paths] == ["due"] * 3 + ["published"]
            frozen.set()
            publisher.wake()
            await until(lambda: len(begun) == 4)
        finally:
            await publisher.stop()


async def test_folders_that_do_not_answer_leave_lanes_for_the_hub() -> None:
    begun: list[str] = []
    frozen = asyncio.Event()

    async def bring(publication: Publication) -> str:
        begun.append(publication.publish.to)
        if publication.publish.to.startswith("folder:"):
            await frozen.wait()
        return "there"

    async with orchestrator() as running:
        agent = await running.worker()
        for to in (*(f"folder://of-{number}" for number in range(LANES + 1)), "folder://last"):
            await running.submit(config={**COMMAND, "publish": {"to": to}})
            await agent.report(await agent.take(), "completed", exit_code=0)
            running.clock.at += 1.0
        in_use = set[str]()
        lanes = [asyncio.create_task(try_all_due(running.fleet, bring, in_use)) for _ in range(LANES)]
        await asyncio.wait(lanes, timeout=5, return_when=asyncio.FIRST_COMPLETED)
        assert sum(not lane.done() for lane in lanes) == len(begun) == FOLDERS_AT_ONCE < LANES
        frozen.set()
        await asyncio.gather(*lanes)
        assert len(begun) == LANES + 2


class LateAnswers(MemoryStore):
    """A store whose answers may be on their way for a while: what they say was true when it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.arrives = asyncio.Event()
        self.arrives.set()
        self.asked = 0

    async def read(self, look: Callable[[View], T]) -> T:
        answer = await super().read(look)
        self.asked += 1
        await self.arrives.wait()
        return answer


async def test_what_one_lane_has_just_published_another_does_not_publish_again() -> None:
    store, begun, finished = LateAnswers(), list[str](), asyncio.Event()

    async def bring(publication: Publication) -> str:
        begun.append(publication.job_id)
        await finished.wait()
        return "file:///there"

    async with orchestrator(store) as running:
        await completed(running, {"to": "folder://cats"})
        in_use = set[str]()
        first = asyncio.create_task(try_all_due(running.fleet, bring, in_use))
        await until(lambda: len(begun) == 1)
        store.arrives.clear()
        asked = store.asked
        second = asyncio.create_task(try_all_due(running.fleet, bring, in_use))
        await until(lambda: store.asked == asked + 1)
        finished.set()
        await until(lambda: not in_use)
        store.arrives.set()
        await asyncio.gather(first, second)
        assert len(begun) == 1


async def test_what_a_job_made_that_is_not_there_any_more_is_published_once_and_holds_up_no_other(
    tmp_path: Path,
) -> None:
    """Its end could not be noted: it was published again at every look, and ended the lane each time."""
    store, begun = SqliteStore(lay_sqlite(tmp_path / "fleet.db")), list[str]()

    async def bring(publication: Publication) -> str:
        begun.append(publication.job_id)
        return "file:///there"

    try:
        async with orchestrator(store) as running:
            agent = await running.worker()
            made = []
            for to in ("folder://of-one", "folder://of-another"):
                job = await running.submit(config={**COMMAND, "publish": {"to": to}})
                await agent.report(await agent.take(), "completed", exit_code=0)
                running.clock.at += 1.0
                made.append(job["job_id"])
            with sqlite3.connect(tmp_path / "fleet.db") as connection:
                assert connection.execute("DELETE FROM jobs WHERE id = ?", made[:1]).rowcount == 1
            connection.close()
            assert await try_all_due(running.fleet, bring) == 2
            assert begun == made
            assert await try_all_due(running.fleet, bring) == 0
    finally:
        await store.close()
