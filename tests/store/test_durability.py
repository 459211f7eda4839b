"""What was acknowledged is there afterwards, whatever happens to the process or the disk."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from simpletuner_fleet.core.audit import ChainCheck
from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.ports import View
from simpletuner_fleet.store.opening import open_store
from simpletuner_fleet.store.sqlite import SqliteStore
from tests.store.observing import Recorder

ROOT = Path(__file__).parent.parent.parent
KILL_AFTER = (3, 250)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/fleet.db"
    return str(request.getfixturevalue("postgres_database"))


def acknowledged_before_death(url: str, kill_after: int) -> list[int]:
    command = [sys.executable, "-m", "tests.store.acknowledging_writer", url]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        heard = [int(process.stdout.readline()) for _ in range(kill_after)]
        process.send_signal(signal.SIGKILL)
        # What stood in the pipe when it died had been acknowledged too; a line cut short had not.
        heard += [
            int(line) for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")
        ]
    return heard


async def test_killing_the_writer_loses_nothing_acknowledged(url: str) -> None:
    acknowledged = [seq for kill_after in KILL_AFTER for seq in acknowledged_before_death(url, kill_after)]
    store = open_store(url)

    def look(view: View) -> list[int]:
        return [
            seq for seq in acknowledged if view.job(f"j_{seq}") is None or not view.job_events(f"j_{seq}", 1)
        ]

    assert await store.read(look) == []
    assert len(set(acknowledged)) == len(acknowledged) >= sum(KILL_AFTER)
    check = ChainCheck([])
    check.feed(await store.read(lambda view: view.audit_range(0, 1_000_000)))
    assert check.finish() == []
    await store.close()


def small_disk_command() -> list[str] | None:
    """How to run something with a small file system of its own; it vanishes with the process."""
    for unshare in (["unshare", "--mount"], ["unshare", "--mount", "--map-root-user"]):
        probe = [*unshare, "sh", "-c", "mount -t tmpfs -o size=64k none /mnt"]
        if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
            return [*unshare, "sh", "-c", 'mount -t tmpfs -o size=16m none "$0" && exec "$@"']
    return None


def test_a_full_disk_is_told_loses_nothing_and_is_recovered_from(tmp_path: Path) -> None:
    small_disk = small_disk_command()
    story = [sys.executable, "-m", "tests.store.full_disk_story", str(tmp_path)]
    command = [*small_disk, str(tmp_path), *story, "disk"] if small_disk else [*story, "rlimit"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    seen = json.loads(output)
    assert seen["acknowledged"] > 20
    if small_disk:
        assert seen["refusal"] == "The disk that holds the database is full; nothing was changed."
    assert seen["index_dropped"]
    assert (seen["lost_while_full"], seen["lost_after_restart"], seen["chain_problems"]) == ([], [], 0)


@contextmanager
def refusing_to_sync(path: Path) -> Iterator[None]:
    """For a while /dev/null stands in for every open descriptor of the file: it takes writes but cannot sync."""
    null = os.open("/dev/null", os.O_RDWR)
    mine = [int(name) for name in os.listdir("/proc/self/fd") if _leads_to(name, path)]
    kept = {descriptor: os.dup(descriptor) for descriptor in mine}
    for descriptor in kept:
        os.dup2(null, descriptor, inheritable=False)
    os.close(null)
    yield
    for descriptor, copy in kept.items():
        os.dup2(copy, descriptor, inheritable=False)
        os.close(copy)


def _leads_to(descriptor: str, path: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}") == str(path)
    except FileNotFoundError:
        return False


async def test_after_a_failed_sync_nothing_is_ever_acknowledged_again(tmp_path: Path) -> None:
    observer = Recorder()
    store = SqliteStore(tmp_path / "fleet.db")
    store.observe(observer)
    await store.write(lambda tx: tx.put_setting("kept", "yes"))
    known_resets = len(observer.reset_in)
    with (
        refusing_to_sync(tmp_path / "fleet.db-wal"),
        pytest.raises(StoreUnavailable, match="unknown until a restart"),
    ):
        await store.write(lambda tx: tx.put_setting("lost", "yes"))
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="unknown until a restart"):
            await store.write(lambda tx: tx.put_setting("later", "yes"))
    assert len(observer.reset_in) > known_resets
    await store.close()
    reopened = SqliteStore(tmp_path / "fleet.db")
    assert await reopened.read(lambda view: (view.setting("kept"), view.setting("later"))) == ("yes", None)
    await reopened.close()
