"""Caches outlive attempts, and never serve two at once."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from simpletuner_fleet.agent.data import kept_caches
from simpletuner_fleet.agent.data.data_cache import DataCache
from simpletuner_fleet.agent.data.kept_caches import KEPT_S, KeptCaches
from simpletuner_fleet.agent.isolation.walls import Kind, Walls, WallSurroundings
from simpletuner_fleet.core.training.checkpoint import FileEntry
from simpletuner_fleet.trainers.job_trees import remove_tree
from tests.trainers.test_job_trees import dig

CAT = "0d3dd1b2d8b1f1d1c1f5ec1d1d63a6c2a0b0a4f8a1b2c3d4e5f60718293a4b5c"


def test_the_next_attempt_finds_what_the_last_one_left(tmp_path: Path) -> None:
    caches = KeptCaches(tmp_path)
    first = caches.take("key", "a_1")
    (first / "latent.pt").write_bytes(b"x")
    caches.release("a_1")
    second = caches.take("key", "a_2")
    assert second == first == caches.take("key", "a_2")
    assert (second / "latent.pt").exists()
    assert caches.take("other", "a_3") != second


def test_two_attempts_at_once_have_a_folder_each_also_after_a_restart(tmp_path: Path) -> None:
    caches = KeptCaches(tmp_path)
    first, second = caches.take("key", "a_1"), caches.take("key", "a_2")
    assert first != second
    again = KeptCaches(tmp_path)
    assert again.take_up({"a_2"}) == [first]
    assert again.place_of("a_2") == second
    assert again.take("key", "a_3") == first


def test_what_nobody_used_for_long_goes_and_what_is_held_stays(tmp_path: Path) -> None:
    now = [1000.0]
    caches = KeptCaches(tmp_path, clock=lambda: now[0], free_bytes=0)
    caches.take("held", "a_1")
    caches.take("old", "a_2")
    caches.release("a_2")
    now[0] += KEPT_S + 1
    caches.take("new", "a_3")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "held-0",
        "held-0.holder",
        "new-0",
        "new-0.holder",
    ]


def test_with_a_full_disk_the_unused_go(tmp_path: Path) -> None:
    caches = KeptCaches(tmp_path, free_bytes=2**62)
    caches.take("unused", "a_1")
    caches.release("a_1")
    caches.take("used", "a_2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["used-0", "used-0.holder"]


def test_nobody_waits_long_while_an_unused_one_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_caches, "ROOM_WITHIN_S", 0.1, raising=False)
    caches = KeptCaches(tmp_path, free_bytes=2**62)
    for attempt_id in ("a_1", "a_3"):
        caches.take("key", attempt_id)
    caches.release("a_1")
    removing, may_end, ended = Event(), Event(), Event()

    def slowly(path: Path) -> None:
        removing.set()
        assert may_end.wait(20)
        remove_tree(path)
        ended.set()

    monkeypatch.setattr(kept_caches, "remove_tree", slowly)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(caches.take, "other", "a_2")
        assert removing.wait(20)
        try:
            threads.submit(caches.release, "a_3").result(5)
            assert first.result(5).is_dir()
            assert threads.submit(caches.take, "third", "a_4").result(5).is_dir()
            assert not ended.is_set()
        finally:
            may_end.set()
        assert ended.wait(20)


def test_a_trainers_index_stays_beside_data_that_is_shown_again_under_the_same_path(tmp_path: Path) -> None:
    cache = DataCache.open(tmp_path / "cache", None)
    content = cache.object_path(CAT)
    content.parent.mkdir(parents=True)
    content.write_bytes(b"cat")
    os.utime(content, ns=(10**18, 10**18))
    files = (FileEntry(path="cats/1.png", size=3, sha256=CAT),)
    try:
        seen = []
        for attempt in ("a_1", "a_2"):
            cache.show_in(attempt, tmp_path / "kept" / "data")
            seen.append(cache.lay_out(attempt, "pets", files))
            assert (seen[-1] / "cats/1.png").read_bytes() == b"cat"
            (seen[-1] / "index.json").touch()
            cache.release(attempt)
            assert not (seen[-1] / "cats/1.png").exists()
            assert (seen[-1] / "index.json").exists()
        assert seen[0] == seen[1]
        (seen[0] / "cats/1.png").write_bytes(b"a trainer wrote over it")
        cache.show_in("a_3", tmp_path / "kept" / "data")
        cache.lay_out("a_3", "pets", files)
        assert (seen[0] / "cats/1.png").read_bytes() == b"cat"
    finally:
        cache.close()


@pytest.mark.parametrize("kind", ["user", "landlock"])
def test_what_a_job_laid_leads_the_next_nowhere_though_it_and_the_worker_were_killed(
    tmp_path: Path, kind: Kind
) -> None:
    """Nobody cleaned up: the job was killed, and the worker before it could."""
    if kind == "user" and os.geteuid() != 0:
        pytest.skip("a user for each job needs root")
    about = WallSurroundings(home=str(tmp_path), environment={}, pythons=(), grants=(), hidden=())
    walls = Walls(kind, about, tmp_path, 1)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "link").symlink_to("anything")
    folder = tmp_path / "caches"
    cache = KeptCaches(folder, clean=walls.clean).take("key", "a_1")
    (cache / "data").symlink_to(elsewhere)
    (cache / "deep").mkdir()
    (cache / "deep" / "latents").symlink_to("/etc/passwd")
    (cache / "deep" / "kept.pt").write_bytes(b"x")
    (cache / "holder").symlink_to(elsewhere / "written-through-a-link")
    if kind == "user":
        for path in (cache, cache / "deep", cache / "deep" / "kept.pt"):
            os.chown(path, 60578, 60578)
    again = KeptCaches(folder, clean=walls.clean)
    assert again.place_of("a_1") == cache, "no job changes who holds what"
    assert again.take_up(set()) == [cache]
    assert again.take("key", "a_2") == cache
    left = [path for path in cache.rglob("*") if path.is_symlink()]
    assert left == []
    assert (cache / "deep" / "kept.pt").stat().st_uid == os.geteuid()
    assert [path.name for path in elsewhere.iterdir()] == ["link"], "nothing there was touched"


def test_links_laid_after_the_last_look_are_gone_when_the_folder_is_taken_again(tmp_path: Path) -> None:
    """A worker that died between giving a folder back and cleaning it left no trace of who had it."""
    about = WallSurroundings(home=str(tmp_path), environment={}, pythons=(), grants=(), hidden=())
    walls = Walls("landlock", about, tmp_path, 1)
    caches = KeptCaches(tmp_path / "caches", clean=walls.clean)
    cache = caches.take("key", "a_1")
    caches.release("a_1")
    (cache / "data").symlink_to("/etc")
    assert KeptCaches(tmp_path / "caches", clean=walls.clean).take("key", "a_2") == cache
    assert not (cache / "data").is_symlink()


def test_what_no_walk_comes_through_begins_anew(tmp_path: Path) -> None:
    """A job may leave folders in which the worker gets lost: its next one starts all the same."""
    caches = KeptCaches(tmp_path)
    cache = caches.take("key", "a_1")
    try:
        dig(cache / "deep")
        caches.release("a_1")
        assert caches.take("key", "a_2") == cache
        assert list(cache.iterdir()) == []
        deadline = time.monotonic() + 30
        while len(list(tmp_path.iterdir())) > 2:
            assert time.monotonic() < deadline, "what was put aside is removed in its own time"
            time.sleep(0.05)
    finally:
        remove_tree(tmp_path)
