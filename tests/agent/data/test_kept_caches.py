"""Caches outlive attempts, and never serve two at once."""

import os
from pathlib import Path

from simpletuner_fleet.agent.data.data_cache import DataCache
from simpletuner_fleet.agent.data.kept_caches import KEPT_S, KeptCaches
from simpletuner_fleet.core.training.checkpoint import FileEntry

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
    assert sorted(path.name for path in tmp_path.iterdir()) == ["held-0", "new-0"]


def test_with_a_full_disk_the_unused_go(tmp_path: Path) -> None:
    caches = KeptCaches(tmp_path, free_bytes=2**62)
    caches.take("unused", "a_1")
    caches.release("a_1")
    caches.take("used", "a_2")
    assert [path.name for path in tmp_path.iterdir()] == ["used-0"]


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
