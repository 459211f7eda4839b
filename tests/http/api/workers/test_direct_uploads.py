"""Files that go straight to the bucket: what a link opens, what it does not, and when what was sent begins to count."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.training.direct import LEAST_BYTES
from tests.http.api_kit import Running
from tests.http.direct_kit import LARGE, OTHER, PART, ByHand, bucket_of, pieces, staged, with_bucket
from tests.http.upload_kit import STATE, Uploader, sha, uploading
from tests.s3_gate import Gate, Seen, gate_before
from tests.s3_server import CREDENTIALS
from tests.storage.sweeping.swept import swept


@pytest.fixture(scope="module")
def shared_gate(s3_endpoint: str) -> Iterator[Gate]:
    with gate_before(s3_endpoint) as gate:
        yield gate


@pytest.fixture
def gate(shared_gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Gate:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    shared_gate.reset()
    return shared_gate


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(trust_env=False, timeout=60) as client:
        yield client


@pytest.fixture
async def running(gate: Gate, tmp_path: Path) -> AsyncIterator[Running]:
    async with with_bucket(gate, tmp_path) as started:
        yield started


async def test_a_file_goes_straight_to_the_bucket_and_counts_once_it_is_verified(
    running: Running, gate: Gate, http: httpx2.AsyncClient
) -> None:
    up = await uploading(running)
    hand = ByHand(up, http)
    assert (await up.ask(LARGE))["direct"] is True
    assert await hand.ask(LARGE) == {
        "complete": False,
        "part_bytes": PART,
        "have": [],
        "url": "",
        "headers": {},
    }
    await hand.send(LARGE, 1, 3)
    assert (await hand.ask(LARGE))["have"] == [1, 3]
    assert not (await hand.end(LARGE))["complete"], "a part is missing"
    await up.manifest(1, {"model": LARGE}, expect=409)
    await hand.send(LARGE, 2)
    assert (await hand.end(LARGE))["complete"]
    assert (await hand.end(LARGE))["complete"], "said again, after the answer was lost"
    assert (await hand.ask(LARGE))["complete"]
    assert [len(seen.body) for seen in gate.parts_by_link] == [PART, len(LARGE) - 2 * PART, PART]
    await up.manifest(1, {"model": LARGE})
    assert (await up.fetch(LARGE)).content == LARGE
    assert await staged(running.deps.direct) == []


async def test_a_link_opens_exactly_what_it_was_made_for(
    running: Running, gate: Gate, http: httpx2.AsyncClient
) -> None:
    hand = ByHand(await uploading(running), http)
    part = pieces(LARGE)[1]
    link = await hand.ask(LARGE, part, 1)
    assert await hand.put(link, pieces(OTHER)[1]) == 400, "other bytes"
    assert await hand.put(link, part[:-1]) == 403, "fewer bytes"
    assert await hand.put(link, part, **{"x-amz-acl": "public-read"}) == 403
    elsewhere = {**link, "url": link["url"].replace("partNumber=1", "partNumber=2")}
    assert await hand.put(elsewhere, part) == 403
    stranger = {**link, "url": link["url"].replace("/direct/", "/objects/")}
    assert await hand.put(stranger, part) == 403
    gate.now = lambda: 1e12
    assert await hand.put(link, part) == 403, "it has run out"
    wrong = "SignatureDoesNotMatch"
    assert gate.refused == ["BadDigest", wrong, "AccessDenied", wrong, wrong, "AccessDenied"]
    assert (await hand.ask(LARGE))["have"] == []
    gate.now = Gate().now
    assert await hand.put(await hand.ask(LARGE, part, 1), part) == 200


async def test_a_hostile_worker_is_given_no_link_beyond_its_own_file(
    running: Running, http: httpx2.AsyncClient
) -> None:
    mine, theirs = await uploading(running), await uploading(running, "gpu-2")
    hand = ByHand(mine, http)
    digest, part = sha(LARGE), {"number": 1, "sha256": sha(pieces(LARGE)[1])}
    good = {"epoch": mine.offer["epoch"], "size": len(LARGE), "part_bytes": PART, "part": part}

    async def refused(name: str = digest, base: str = mine.base, **other: object) -> int:
        answer = await mine.agent.http.post(
            f"{base}/objects/{name}/direct", json={**good, **other}, headers=mine.headers
        )
        assert "X-Amz-Signature" not in answer.text, (name, other)
        return answer.status_code

    assert await refused(base=theirs.base, epoch=theirs.offer["epoch"]) in (403, 404, 409)
    assert await refused(epoch=theirs.offer["epoch"]) == 409
    for name in ("..%2f..%2fobjects", digest.upper(), digest + "0", f"..%2f{digest}", "%00" + digest[3:]):
        assert await refused(name) in (404, 422), name
    for number in (0, -1, 4, 10**9, 1.5, "1"):
        assert await refused(part={**part, "number": number}) == 422, number
    for size in (-1, 0, 2**63, "12"):
        assert await refused(size=size) in (409, 413, 422), size
    for wrong in ("", "..", sha(LARGE).upper(), f"{digest}&acl="):
        assert await refused(part={**part, "sha256": wrong}) == 422, wrong
    link = await hand.ask(LARGE, pieces(LARGE)[1], 1)
    assert f"/direct/{mine.offer['job_id']}/{mine.offer['epoch']}/{digest}-" in link["url"]


async def test_what_is_not_what_its_digest_says_never_counts_nor_touches_what_is_stored(
    running: Running, http: httpx2.AsyncClient
) -> None:
    honest = await uploading(running)
    hand = ByHand(honest, http)
    await hand.send(LARGE)
    await hand.end(LARGE)
    await honest.manifest(1, {"model": LARGE})
    liar = ByHand(await uploading(running, "gpu-2"), http)
    for number, part in pieces(OTHER).items():
        assert await liar.put(await liar.ask(LARGE, part, number), part) == 200
    assert (await liar.end(LARGE, expect=422))["code"] == "digest_mismatch"
    assert not (await liar.end(LARGE))["complete"]
    assert (await honest.fetch(LARGE)).content == LARGE
    assert await staged(running.deps.direct) == []


async def test_knowing_a_digest_makes_nobody_its_owner(running: Running, http: httpx2.AsyncClient) -> None:
    honest = ByHand(await uploading(running), http)
    await honest.send(LARGE)
    await honest.end(LARGE)
    curious = await uploading(running, "gpu-2")
    hand = ByHand(curious, http)
    assert not (await hand.ask(LARGE))["complete"]
    assert not (await hand.end(LARGE))["complete"]
    await curious.manifest(1, {"model": LARGE}, expect=409)


async def test_a_link_of_an_attempt_that_is_over_alters_nothing_that_counts(
    running: Running, gate: Gate, http: httpx2.AsyncClient
) -> None:
    up = await uploading(running)
    hand = ByHand(up, http)
    await hand.send(LARGE, 1, 2)
    kept = await hand.ask(LARGE, pieces(LARGE)[3], 3)
    await up.agent.close_stream()
    await running.pass_time(200)
    assert (await hand.ask(LARGE, expect=409))["code"] == "stale_attempt"
    assert (await hand.end(LARGE, expect=409))["code"] == "stale_attempt"
    assert await hand.put(kept, pieces(LARGE)[3]) == 200, "nobody can call a link back"
    assert (await hand.end(LARGE, expect=409))["code"] == "stale_attempt"
    other = await running.worker("gpu-2")
    again = ByHand(Uploader(other, await other.take()), http)
    assert (await again.ask(LARGE))["have"] == [], "the next attempt begins with its own"
    assert await hand.put(kept, pieces(LARGE)[3]) != 200, "what was staged is gone, and its upload with it"
    await again.send(LARGE)
    assert (await again.end(LARGE))["complete"]


async def test_the_quota_holds_before_the_first_link_and_for_all_that_have_one(
    gate: Gate, tmp_path: Path, http: httpx2.AsyncClient
) -> None:
    policy = replace(Policy(), job_storage_bytes=20_000_000)
    async with with_bucket(gate, tmp_path, policy=policy) as running:
        up = await uploading(running)
        hand = ByHand(up, http)
        await hand.ask(LARGE)
        assert (await hand.ask(OTHER, expect=413))["code"] == "quota_exceeded"
        assert running.deps.direct
        running.deps.direct.under_way.clear()
        assert (await hand.ask(OTHER, expect=413))["code"] == "quota_exceeded", "nor after a restart"
        assert len(await staged(running.deps.direct)) == 1
        problem = await up.put(OTHER, 0, 1000, expect=413)
        assert problem["code"] == "quota_exceeded", "nor through the orchestrator"


@pytest.mark.parametrize("when", ["between parts", "put together"])
async def test_whoever_leads_next_goes_on_where_the_last_one_was_killed(
    running: Running, gate: Gate, tmp_path: Path, http: httpx2.AsyncClient, when: str
) -> None:
    hand = ByHand(await uploading(running), http)
    await hand.send(LARGE, *([1, 2] if when == "between parts" else []))
    direct = running.deps.direct
    assert direct
    if when == "put together":
        [one] = (await direct.of_job(hand.up.offer["job_id"])).values()
        assert await direct.put_together(one)
    successor = bucket_of(gate, tmp_path)
    successor.trouble = ""
    running.deps.direct, running.deps._storage = successor, None
    assert (await hand.ask(LARGE))["have"] == ([1, 2] if when == "between parts" else [1, 2, 3])
    if when == "between parts":
        await hand.send(LARGE, 3)
    assert (await hand.end(LARGE))["complete"]
    assert len(gate.parts_by_link) == 3
    assert await staged(successor) == []
    await successor.blobs.close()


async def test_what_nobody_goes_on_with_is_swept_and_what_is_under_way_is_not(
    running: Running, http: httpx2.AsyncClient
) -> None:
    up = await uploading(running)
    hand = ByHand(up, http)
    await hand.send(LARGE, 1)
    await hand.send(OTHER, 1)
    await up.put(OTHER, 0, len(OTHER))
    direct = running.deps.direct
    assert direct
    assert len(await staged(direct)) == 1, "what came through the orchestrator needs no staging any more"
    await swept(running.deps.storage)
    assert len(await staged(direct)) == 1
    await running.post(f"/api/queue/{up.offer['job_id']}/cancel")
    await up.agent.close_stream()
    await running.pass_time(200)
    await running.pass_time(7200)
    await swept(running.deps.storage)
    assert await staged(direct) == []
    assert direct.under_way == {}


async def test_small_and_very_large_files_and_all_where_the_bucket_does_not_do_go_through_the_orchestrator(
    running: Running, http: httpx2.AsyncClient
) -> None:
    up = await uploading(running)
    hand = ByHand(up, http)
    assert (await hand.ask(STATE, expect=409))["code"] == "direct_unavailable"
    assert running.deps.direct
    running.deps.direct.trouble = "The bucket is on fire."
    assert "direct" not in await up.ask(LARGE)
    assert "on fire" in (await hand.ask(LARGE, expect=409))["detail"]
    await up.put(LARGE, 0, len(LARGE))
    assert (await up.ask(LARGE)) == {"missing": []}
    assert len(STATE) < LEAST_BYTES
    assert sha(LARGE) != sha(STATE)


async def test_people_read_large_files_from_the_bucket_only_where_they_can_and_only_to_save_them(
    running: Running, http: httpx2.AsyncClient
) -> None:
    up = await uploading(running)
    hand = ByHand(up, http)
    await hand.send(LARGE)
    await hand.end(LARGE)
    await up.send(STATE)
    manifest = (await up.manifest(1, {"a b.bin": LARGE, "state": STATE}))["manifest_id"]
    base = f"/api/jobs/{up.offer['job_id']}/artifacts/{manifest}/files"
    assert running.deps.direct

    async def asked(path: str, **headers: str) -> httpx2.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await running.http.get(f"{base}/{path}", headers=named, timeout=120)

    assert (await asked("a b.bin")).content == LARGE, "who does not say that it can follow is not sent on"
    assert (await asked("a b.bin", sec_fetch_mode="navigate")).status_code == 200
    assert (await asked("state", x_storage_direct="yes")).content == STATE
    sent_on = await asked("a b.bin", x_storage_direct="yes")
    assert sent_on.status_code == 307
    stored = await http.get(sent_on.headers["location"], headers={"Range": "bytes=1000-"})
    assert (stored.status_code, stored.content) == (206, LARGE[1000:])
    assert stored.headers["content-type"] == "application/octet-stream"
    assert stored.headers["content-disposition"] == "attachment; filename*=UTF-8''a%20b.bin"
    running.deps.direct.for_browsers = True
    assert (await asked("a b.bin", sec_fetch_mode="navigate")).status_code == 307
    assert (await asked("a b.bin", sec_fetch_mode="no-cors")).status_code == 200, "a page shows nothing of it"


async def test_a_file_is_finished_though_what_is_known_of_its_job_is_forgotten_meanwhile(
    running: Running, gate: Gate, http: httpx2.AsyncClient
) -> None:
    """The sweep forgets a job of which it has dropped what an earlier attempt had left, and so does a file that is gone."""
    up = await uploading(running)
    hand = ByHand(up, http)
    await hand.send(LARGE, 1, 2, 3)
    direct = running.deps.storage.direct
    assert direct is not None

    def forget(seen: Seen) -> None:
        if seen.method == "POST" and "uploadId" in seen.query:
            direct.under_way.clear()

    gate.before = forget
    assert (await hand.end(LARGE))["complete"] is True
    assert await staged(direct) == []
