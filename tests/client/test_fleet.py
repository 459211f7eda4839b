"""The Python client against a real orchestrator: both kinds, one behaviour; answers that get lost; errors with codes."""

import asyncio
import inspect
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from simpletuner_fleet.client import (
    AsyncFleet,
    ClientError,
    Fleet,
    InvalidRequest,
    JobFailed,
    NoSuchThing,
    NotLetIn,
    UnreachableError,
    WaitTimeout,
)
from simpletuner_fleet.client.trust import fingerprint_of
from tests.e2e.certificates import own_certificate
from tests.e2e.proxy import Proxy
from tests.e2e.tls_terminator import TlsTerminator
from tests.http.api.jobs.test_logs_api import put
from tests.http.api.jobs.test_metrics_api import Trainer, point
from tests.http.api_kit import ADMIN, CPU_CONFIG, Running, orchestrator
from tests.http.upload_kit import WEIGHTS, Uploader

T = TypeVar("T")


async def blocking(act: Callable[[], T]) -> T:
    """The server runs in this very loop, so that whoever blocks does it in a thread."""
    return await asyncio.to_thread(act)


@asynccontextmanager
async def fleet_at(running: Running, **more: Any) -> AsyncIterator[AsyncFleet]:
    async with AsyncFleet(more.pop("url", running.listening.url), more.pop("token", ADMIN), **more) as fleet:
        yield fleet


@asynccontextmanager
async def lossy(running: Running) -> AsyncIterator[tuple[Proxy, AsyncFleet]]:
    """The same fleet behind a line on which things get lost."""
    with Proxy(running.listening.port) as proxy:
        async with fleet_at(running, url=proxy.url) as fleet:
            yield proxy, fleet


def test_both_clients_have_the_same_methods_with_the_same_arguments() -> None:
    def methods(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(member).parameters)
            for name, member in vars(kind).items()
            if not name.startswith("_") and inspect.isfunction(member)
        }

    assert methods(Fleet) == methods(AsyncFleet)
    assert {"wait", "logs", "metrics", "submit", "dry_run", "explain", "cancel", "retry"} <= methods(
        Fleet
    ).keys()


async def test_a_job_from_its_dry_run_to_its_files(tmp_path: Path) -> None:
    """The client that blocks, from the first question to the last byte."""
    async with orchestrator() as running:
        await running.save_config("cats")
        fleet = await blocking(lambda: Fleet(running.listening.url, ADMIN))
        assert (await blocking(fleet.whoami)).name
        planned = await blocking(lambda: fleet.dry_run("cats", gpus=0))
        assert planned.dry_run
        assert planned.job_id is None
        assert planned.would_start_now is False
        submitted = await blocking(lambda: fleet.submit("cats", name="tabby", gpus=0))
        assert (await blocking(lambda: fleet.explain(submitted))).code == "NO_WORKERS"
        assert (await blocking(lambda: fleet.outlook(submitted))).now_with == []

        agent = await running.worker()
        offer = await agent.take()
        await agent.report(offer, "running")
        await put(agent, offer, 0, b"one\ntwo\xff\nthree")
        await Trainer(agent, offer).send(0, [point(1, loss=2.0, lr=0.1), point(2, loss="NaN")])
        uploader = Uploader(agent, offer)
        await uploader.checkpoint(2)
        lines = asyncio.create_task(blocking(lambda: list(fleet.logs(submitted, follow=True))))
        waiting = asyncio.create_task(blocking(lambda: fleet.wait(submitted, timeout_s=20)))
        await asyncio.sleep(0.2)
        await agent.report(offer, "completed")
        job = await waiting
        assert (job.status, job.name) == ("completed", "tabby")
        assert await lines == ["one", "two�", "three"]
        assert await blocking(lambda: list(fleet.logs(job, tail=1))) == ["three"]

        metrics = await blocking(lambda: fleet.metrics(job, ["loss", "lr"]))
        assert metrics.keys == ["loss", "lr"]
        assert metrics.by_step()["lr"] == [0.1, None]
        columns = metrics.columns()
        assert columns["step"] == [1, 2, 1]
        assert str(columns["last"][1]) == "nan"

        files = await blocking(lambda: fleet.download(job, tmp_path, latest_checkpoint=True))
        assert [file.name for file in files] == ["model.bin", "state.bin"]
        assert files[0].read_bytes() == WEIGHTS + b"2"
        assert [one.name for one in await blocking(lambda: fleet.artifacts(job))] == ["checkpoint-2"]
        again = await blocking(lambda: fleet.submit(CPU_CONFIG, config_name="dogs"))
        seen = await blocking(lambda: [one.id for one in fleet.jobs(limit=1)])
        assert seen == [again.job_id]
        compared = await blocking(lambda: fleet.compare(job, again))
        assert [one.id for one in compared.jobs] == [job.id, again.job_id]
        fleet.close()


async def test_the_one_that_awaits_does_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "pets"
    folder.mkdir()
    (folder / "a.txt").write_text("a cat")
    async with orchestrator() as running, fleet_at(running) as fleet:
        await fleet.save_config("cats", CPU_CONFIG)
        dataset = await fleet.push_dataset(folder)
        assert (await fleet.datasets())[0].id == dataset.id
        assert (await fleet.dataset(dataset.id)).name == "pets"
        jobs = [await fleet.submit("cats") for _ in range(3)]
        assert [one.id async for one in fleet.jobs(limit=2)] == [jobs[2].job_id, jobs[1].job_id]
        assert (await fleet.cancel(jobs[0])).status == "cancelled"
        assert (await fleet.set_priority(jobs[1], -5)).priority == -5
        agent = await running.worker()
        offer = await agent.take()
        await put(agent, offer, 0, b"hello\n")
        waiting = asyncio.create_task(fleet.wait(offer["job_id"], timeout_s=20))
        await asyncio.sleep(0.1)
        await agent.report(offer, "failed", error="CUDA out of memory", exit_code=1)
        with pytest.raises(JobFailed, match="CUDA out of memory") as failed:
            await waiting
        assert failed.value.job.id == offer["job_id"]
        assert (await fleet.wait(offer["job_id"], check=False)).status == "failed"
        assert (await fleet.wait(offer["job_id"], timeout_s=0, check=False)).status == "failed"
        assert [line async for line in fleet.logs(offer["job_id"])] == ["hello"]
        assert (await fleet.workers())[0].name == "gpu-1"
        assert (await fleet.queue()).total == 3
        assert len(await fleet.attempts(offer["job_id"])) == 1
        assert (await fleet.events(offer["job_id"])).events
        assert (await fleet.config("cats")).version == 1


@pytest.mark.parametrize("act", ["submit", "retry"])
async def test_an_answer_that_gets_lost_makes_no_second_job(act: str) -> None:
    async with orchestrator() as running, lossy(running) as (proxy, fleet):
        await running.save_config("cats")
        old = await fleet.submit("cats")
        await fleet.cancel(old)
        proxy.hold_reply(b"/submit" if act == "submit" else b"/retry")
        made = await (fleet.submit("cats") if act == "submit" else fleet.retry(old))
        assert proxy.held.is_set()
        ids = [job.id async for job in fleet.jobs()]
        assert ids == [made.job_id if act == "submit" else made.id, old.job_id]  # type: ignore[union-attr]


async def test_a_key_that_was_used_for_another_retry_is_refused() -> None:
    async with orchestrator() as running, fleet_at(running) as fleet:
        await running.save_config("cats")
        one, other = await fleet.submit("cats"), await fleet.submit("cats")
        for job in (one, other):
            await fleet.cancel(job)
        first = await fleet.retry(one, idempotency_key="k")
        assert (await fleet.retry(one, idempotency_key="k")).id == first.id
        with pytest.raises(ClientError) as refused:
            await fleet.retry(other, idempotency_key="k")
        assert refused.value.code == "idempotency_mismatch"


async def test_errors_are_exceptions_with_the_problems_own_code() -> None:
    async with orchestrator() as running, fleet_at(running) as fleet:
        with pytest.raises(NoSuchThing) as missing:
            await fleet.job("j_nothing")
        assert (missing.value.code, missing.value.status) == ("not_found", 404)
        with pytest.raises(InvalidRequest) as invalid:
            await fleet.submit(CPU_CONFIG, priority="never")
        assert invalid.value.errors[0]["path"] == "$.priority"
        with pytest.raises(TypeError, match="takes no gups"):
            await fleet.submit(CPU_CONFIG, gups=1)  # type: ignore[call-arg]
        async with fleet_at(running, token="st_wrong") as stranger:
            with pytest.raises(NotLetIn):
                await stranger.whoami()
        with pytest.raises(ClientError, match="does not use TLS"):
            await AsyncFleet("http://192.0.2.1:8001", "st_x").whoami()


async def test_what_a_proxy_says_is_no_word_of_the_orchestrator() -> None:
    async with orchestrator() as running, lossy(running) as (proxy, fleet):
        proxy.answer(b"/retry", 404)
        job = await fleet.submit(CPU_CONFIG)
        await fleet.cancel(job)
        retried = asyncio.create_task(fleet.retry(job))
        await asyncio.sleep(0.3)
        proxy.heal()
        assert (await retried).retry_of == job.job_id
        proxy.answer(b"/cancel", 404)
        with pytest.raises(UnreachableError) as foreign:
            await fleet._driver.run(
                fleet._caller.send(_post(f"/api/jobs/{job.job_id}/cancel"), repeatable=False)
            )
        assert foreign.value.code == "E_FOREIGN_ANSWER"


def _post(target: str) -> Any:
    from simpletuner_fleet.client.calls.call import Send

    return Send("POST", target, b"{}", {"Content-Type": "application/json"}, 5.0)


async def test_waiting_and_following_outlive_a_cut_line() -> None:
    async with orchestrator() as running, lossy(running) as (proxy, fleet):
        agent = await running.worker()
        job = await fleet.submit(CPU_CONFIG)
        offer = await agent.take()
        await put(agent, offer, 0, b"first\nsec")
        lines: list[str] = []

        async def follow() -> None:
            lines.extend([line async for line in fleet.logs(job, follow=True)])

        following, waiting = asyncio.create_task(follow()), asyncio.create_task(fleet.wait(job))
        await asyncio.sleep(0.5)
        proxy.reset()
        await put(agent, offer, 9, b"ond\n")
        await agent.report(offer, "completed")
        async with asyncio.timeout(20):
            assert (await waiting).status == "completed"
            await following
        assert lines == ["first", "second"]


async def test_waiting_ends_when_its_time_is_up() -> None:
    async with orchestrator() as running, fleet_at(running) as fleet:
        job = await fleet.submit(CPU_CONFIG)
        with pytest.raises(WaitTimeout, match="it is queued"):
            await fleet.wait(job, timeout_s=0.4)


async def test_a_file_that_is_not_what_was_stored_is_no_download(tmp_path: Path) -> None:
    async with orchestrator() as running, fleet_at(running) as fleet:
        agent = await running.worker()
        job = await fleet.submit(CPU_CONFIG)
        uploader = Uploader(agent, await agent.take())
        await uploader.checkpoint(1, {"model.bin": b"weights"})
        digest = (await fleet.artifacts(job))[0].files[0].sha256
        running.deps.blobs._objects[digest] = b"WEIGHTS"  # type: ignore[attr-defined]
        with pytest.raises(ClientError) as corrupted:
            await fleet.download(job, tmp_path, latest_checkpoint=True)
        assert corrupted.value.code == "E_DIGEST"
        assert not await blocking(lambda: list(tmp_path.rglob("model.bin*")))
        with pytest.raises(ClientError, match="nothing of this kind"):
            await fleet.download(job, tmp_path)


async def test_address_and_token_are_found_as_the_command_line_finds_them(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with orchestrator() as running:
        monkeypatch.setenv("SIMPLETUNER_URL", running.listening.url)
        monkeypatch.setenv("SIMPLETUNER_API_TOKEN", ADMIN)
        async with AsyncFleet() as fleet:
            assert (await fleet.whoami()).name
        monkeypatch.delenv("SIMPLETUNER_API_TOKEN")
        logins = home / "xdg" / "simpletuner" / "credentials.toml"
        logins.parent.mkdir(parents=True)
        logins.write_text(f'[servers."{running.listening.url}"]\ntoken = "{ADMIN}"\n')
        logins.chmod(0o600)
        async with AsyncFleet() as fleet:
            assert (await fleet.whoami()).name


async def test_a_certificate_is_pinned_or_refused_before_the_token_goes_out(tmp_path: Path) -> None:
    certificate, key = own_certificate(tmp_path)
    pin = fingerprint_of(ssl.PEM_cert_to_DER_cert(certificate.read_text()))
    async with orchestrator() as running:
        with TlsTerminator(running.listening.port, certificate, key) as tls:
            async with fleet_at(running, url=tls.url, ssl_fingerprint=pin) as fleet:
                assert (await fleet.whoami()).name
            async with fleet_at(running, url=tls.url, ssl_fingerprint="ab" * 32) as fleet:
                with pytest.raises(ClientError) as other:
                    await fleet.whoami()
            assert other.value.code == "E_TLS_FINGERPRINT"
            stranger = await blocking(lambda: Fleet(tls.url, ADMIN))
            with pytest.raises(ClientError) as unknown:
                await blocking(stranger.whoami)
            stranger.close()
            assert unknown.value.code == "E_TLS_VERIFY"


async def test_another_orchestrator_is_asked_where_the_first_is_gone(unused_tcp_port: int) -> None:
    async with orchestrator() as running:
        both = f"http://127.0.0.1:{unused_tcp_port},{running.listening.url}"
        async with fleet_at(running, url=both) as fleet:
            assert (await fleet.submit(CPU_CONFIG)).status == "queued"
            assert fleet.url == running.listening.url


async def test_without_pandas_there_are_columns_and_a_word_on_how_to_get_it() -> None:
    async with orchestrator() as running, fleet_at(running) as fleet:
        metrics = await fleet.metrics(await fleet.submit(CPU_CONFIG))
        assert metrics.by_step() == {"step": []}
        try:
            import pandas
        except ImportError:
            with pytest.raises(ClientError, match="no pandas") as missing:
                metrics.to_pandas()
            assert missing.value.code == "E_NO_PANDAS"
        else:
            assert isinstance(metrics.to_pandas(), pandas.DataFrame)
