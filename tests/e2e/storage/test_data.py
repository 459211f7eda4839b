"""Datasets from a folder on one machine to the trainers of others, with real processes."""

import hashlib
import json
import sys
from pathlib import Path

import pytest

from tests.e2e.kit import World
from tests.e2e.processes import wait_until

READS = """\
import hashlib, json, pathlib, sys
folder, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
found = {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}
out.write_text(json.dumps([str(folder), found]))
"""


class Data:
    """Datasets of a world: pushed by the command line, read by a trainer that tells what it saw."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._reads = 0

    def push(self, name: str, size: int) -> str:
        folder = self.world.folder / "data" / name
        (folder / "deep").mkdir(parents=True)
        (folder / "big.bin").write_bytes((name.encode() * size)[:size])
        (folder / "deep" / "caption.txt").write_text(f"a picture of {name}")
        pushed = self.world.cli("data", "push", str(folder))
        assert pushed.returncode == 0, pushed.stderr
        return pushed.stdout.strip()

    def train(self, dataset_id: str, name: str) -> tuple[str, str]:
        """On which worker it was read, and where; what it read is checked."""
        self._reads += 1
        output = self.world.folder / f"read-{self._reads}.json"
        config = self.world.command(
            sys.executable,
            "-I",
            "-S",
            "-c",
            READS,
            "dataset://pets",
            str(output),
            datasets={"pets": dataset_id},
        )
        job = self.world.becomes(self.world.submit(config), "completed")
        place, files = json.loads(output.read_text())
        assert files == self._contents(name)
        return str(job["worker_name"]), place

    def _contents(self, name: str) -> dict[str, str]:
        folder = self.world.folder / "data" / name
        files = (path for path in folder.rglob("*") if path.is_file())
        return {
            path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
        }

    def fetched(self) -> int:
        """How many files workers have fetched so far, by the server's own count of requests."""
        page = self.world.call("GET", "/metrics").text
        return sum(
            int(float(line.rpartition(" ")[2]))
            for line in page.splitlines()
            if "/api/workers/job/{id}/data/{sha256}" in line and "_count" in line
        )

    def holds(self, worker: str) -> list[str]:
        (shown,) = [one for one in self.world.get("/api/admin/workers")["workers"] if one["name"] == worker]
        return list(shown["datasets"])


@pytest.fixture
def data(world: World) -> Data:
    return Data(world)


def test_a_dataset_goes_to_one_worker_and_its_jobs_follow_it(world: World, data: Data) -> None:
    world.start_worker("gpu-a")
    pets = data.push("pets", 300_000)
    assert data.train(pets, "pets")[0] == "gpu-a"
    wait_until(lambda: data.holds("gpu-a") == [pets], "the server hears what the worker has")
    fetched = data.fetched()
    assert fetched == 3, "two files and the list of them"
    world.start_worker("gpu-b")
    assert [data.train(pets, "pets")[0] for _ in range(3)] == ["gpu-a"] * 3
    assert data.fetched() == fetched
    assert data.holds("gpu-b") == []


def test_a_cache_lets_go_of_what_it_has_no_room_for_and_survives_a_restart(world: World, data: Data) -> None:
    worker = world.start_worker("gpu-a", "--data-cache-gb", "0.001")
    cats, dogs = data.push("cats", 600_000), data.push("dogs", 600_000)
    place = Path(data.train(cats, "cats")[1])
    wait_until(lambda: data.holds("gpu-a") == [cats], "the cats are there")
    wait_until(lambda: not place.exists(), "the view of an attempt that is over goes")
    data.train(dogs, "dogs")
    wait_until(lambda: data.holds("gpu-a") == [dogs], "the dogs took their place")
    worker.running.signal(15)
    worker.running.wait()
    worker.start()
    worker.becomes("idle")
    assert data.holds("gpu-a") == [dogs]
    fetched = data.fetched()
    data.train(dogs, "dogs")
    assert data.fetched() == fetched
    victim = next(
        path for path in worker.work_dir.glob("data-cache/objects/*/*") if path.stat().st_size > 1000
    )
    victim.chmod(0o600)
    victim.write_bytes(b"damaged")
    data.train(dogs, "dogs")
    assert data.fetched() == fetched + 1
    huge = data.push("huge", 1_100_000)
    config = world.command("true", "dataset://x", datasets={"x": huge})
    assert world.submitted(config)["explain"]["code"] == "DATA_TOO_LARGE"
