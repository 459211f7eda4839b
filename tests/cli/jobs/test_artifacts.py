"""`jobs artifacts` and `jobs download` against the real routes, and against servers that break off or lie."""

import asyncio
import hashlib
import tarfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.client.files import downloads
from tests.cli.conftest import Answer, CutOff, FakeServer, Run, Seen
from tests.http.api_kit import ADMIN, orchestrator
from tests.http.upload_kit import STATE, WEIGHTS, uploading

JOB = {"id": "j_1", "status": "completed"}
DATA = bytes(range(256)) * 20_000
FILE = "/api/jobs/j_1/artifacts/m_1/files/unet/model.bin"


async def test_what_was_uploaded_comes_down_again_as_folder_and_as_archive(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with orchestrator() as running:
        up = await uploading(running)
        job_id = up.offer["job_id"]
        await up.checkpoint(10)
        await up.checkpoint(20)
        model = {"unet/größe 1.bin": WEIGHTS, "empty": b""}
        await up.send(*model.values())
        await up.manifest(None, model, kind="artifact", name="model")
        monkeypatch.setenv("SIMPLETUNER_URL", running.listening.url)
        monkeypatch.setenv("SIMPLETUNER_API_TOKEN", ADMIN)

        async def call(*words: str) -> Any:
            return await asyncio.to_thread(run, *words)

        listed = await call("jobs", "artifacts", job_id)
        assert listed.code == 0, listed.err
        assert "checkpoint-20" in listed.out
        assert "25.0 KiB" in listed.out
        for _ in range(2):
            done = await call("jobs", "download", job_id[:12], "--to", str(tmp_path / "out"))
            assert done.code == 0, done.err
            assert "2 files, 25.0 KiB, verified" in done.out + done.err
        files = {
            str(path.relative_to(tmp_path / "out")): path.read_bytes()
            for path in (tmp_path / "out").rglob("*")
            if path.is_file()
        }
        assert files == {f"model/{path}": data for path, data in model.items()}
        archive = tmp_path / "newest.tar.gz"
        done = await call("jobs", "download", job_id, "--latest-checkpoint", "--archive", str(archive))
        assert done.code == 0, done.err
        with tarfile.open(archive) as tar:
            packed = {one.name: content.read() for one in tar if (content := tar.extractfile(one))}
        assert packed == {
            "checkpoint-20/model.bin": WEIGHTS + b"20",
            "checkpoint-20/state.bin": STATE,
        }
        assert (await call("jobs", "download", job_id, "--to", "x", "--archive", "y")).code == ExitCode.USAGE
        shown = await call("jobs", "get", job_id)
        assert "SAFE STEP" in shown.out.upper()


def serve(server: FakeServer, file: Any, *, path: str = "unet/model.bin", data: bytes = DATA) -> None:
    manifest = {
        "id": "m_1",
        "kind": "artifact",
        "name": "model",
        "step": None,
        "attempt": 1,
        "worker_name": "gpu-1",
        "created_at": None,
        "total_bytes": len(data),
        "files": [{"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}],
    }
    server.on("GET", "/api/jobs/j_1", JOB)
    server.on("GET", "/api/jobs/j_1/artifacts", {"manifests": [manifest]})
    server.on("GET", FILE, file)


def ranged(data: bytes, seen: Seen) -> Answer:
    asked = seen.headers.get("range")
    if not asked:
        return Answer(200, data)
    start = int(asked.removeprefix("bytes=").rstrip("-"))
    return Answer(206, data[start:], {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"})


def test_a_download_goes_on_where_an_earlier_one_ended(ask: Run, server: FakeServer, tmp_path: Path) -> None:
    serve(server, lambda seen: ranged(DATA, seen))
    part = tmp_path / "out" / "model" / "unet" / "model.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(DATA[:1_000_000])
    done = ask("jobs", "download", "j_1", "--to", str(tmp_path / "out"))
    assert done.code == 0, done.err
    assert (part.parent / "model.bin").read_bytes() == DATA
    assert not part.exists()
    assert [seen.headers.get("range") for seen in server.asked("GET", FILE)] == ["bytes=1000000-"]


def test_a_connection_that_breaks_is_made_again(
    ask: Run, server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "PAUSES_S", (0.0, 0.0))
    asked = 0

    def answer(seen: Seen) -> Answer:
        nonlocal asked
        asked += 1
        if asked % 2:
            raise CutOff
        return ranged(DATA, seen)

    serve(server, answer)
    done = ask("jobs", "download", "j_1", "--archive", str(tmp_path / "model.tar"))
    assert done.code == 0, done.err
    with tarfile.open(tmp_path / "model.tar") as tar:
        content = tar.extractfile("model/unet/model.bin")
        assert content
        assert content.read() == DATA


def test_damaged_bytes_are_never_kept(ask: Run, server: FakeServer, tmp_path: Path) -> None:
    serve(server, lambda seen: ranged(b"x" + DATA[1:], seen))
    for words in (("--to", str(tmp_path / "out")), ("--archive", str(tmp_path / "model.tar"))):
        done = ask("jobs", "download", "j_1", *words)
        assert done.code == ExitCode.FAILED
        assert "SHA-256" in done.err
    assert not [path for path in tmp_path.rglob("model*") if path.is_file()]


@pytest.mark.parametrize("path", ["../../evil", "/etc/passwd", "a/../../b"])
def test_a_path_that_leads_out_of_the_folder_is_refused(
    ask: Run, server: FakeServer, tmp_path: Path, path: str
) -> None:
    serve(server, Answer(200, DATA), path=path)
    done = ask("jobs", "download", "j_1", "--to", str(tmp_path / "out"))
    assert done.code == ExitCode.FAILED
    assert "must not be written" in done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", ["{}/evil", "../evil"])
def test_the_folder_is_never_one_that_the_server_chose(
    ask: Run, server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    job_id = place.format(tmp_path)
    serve(server, Answer(200, DATA))
    server.on("GET", "/api/jobs/j_1", {**JOB, "id": job_id})
    for path in ("artifacts", "artifacts/m_1/files/unet/model.bin"):
        usual = server.routes["GET", f"/api/jobs/j_1/{path}"]
        server.on("GET", f"/api/jobs/{quote(job_id, safe='')}/{path}", usual)
    done = ask("jobs", "download", "j_1")
    assert done.code == ExitCode.FAILED
    assert "is not a job" in done.err
    assert not (tmp_path / "evil").exists()


def test_a_symbolic_link_in_the_way_is_not_followed(ask: Run, server: FakeServer, tmp_path: Path) -> None:
    serve(server, lambda seen: ranged(DATA, seen))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out" / "model").mkdir(parents=True)
    (tmp_path / "out" / "model" / "unet").symlink_to(tmp_path / "elsewhere")
    done = ask("jobs", "download", "j_1", "--to", str(tmp_path / "out"))
    assert done.code == ExitCode.FAILED
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_job_without_artifacts_says_what_there_is(ask: Run, server: FakeServer, tmp_path: Path) -> None:
    server.on("GET", "/api/jobs/j_1", JOB)
    server.on("GET", "/api/jobs/j_1/artifacts", {"manifests": []})
    done = ask("jobs", "download", "j_1", "--to", str(tmp_path / "out"))
    assert done.code == ExitCode.NOT_FOUND
    assert "checkpoints: 0, artifacts: 0" in done.err
    listed = ask("jobs", "artifacts", "j_1")
    assert listed.code == 0
