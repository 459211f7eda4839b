"""Digests of uploads as they come: uploads that nobody goes on with leave nothing behind but a bounded few."""

import hashlib

from simpletuner_fleet.blobs.digests import RunningDigests


def test_uploads_that_were_begun_and_left_are_forgotten() -> None:
    digests = RunningDigests(max_running=8)
    for number in range(2_000):
        digests.feed(("uploads", f"j_{number}"), 0, memoryview(b"a part"))
    digests.close()
    assert len(digests._pending) == 0
    assert len(digests._running) == 8


def test_a_part_is_digested_after_the_one_before_it() -> None:
    digests, key = RunningDigests(), ("uploads", "j_1")
    for number in range(200):
        digests.feed(key, 4 * number, memoryview(b"part"))
    assert digests.result(key, 800) == hashlib.sha256(b"part" * 200).hexdigest()
    digests.close()
