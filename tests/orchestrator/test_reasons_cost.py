"""To say why a job waits costs the same whatever the number of workers, as long as none of them has changed."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from devtools.fuzz.in_process_server import InProcessServer
from simpletuner_fleet.core.placement.matching import why_not_now

NAMES = ("gpu0", "gpu1", "gpu2")


class Asked:
    def __init__(self) -> None:
        self.workers = 0


@contextmanager
def counting() -> Iterator[Asked]:
    """Counts how often a worker is asked what it says to a job, by the interpreter's own account of calls."""
    asked = Asked()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is why_not_now.__code__:
            asked.workers += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield asked
    finally:
        sys.setprofile(before)


async def test_jobs_that_nobody_can_take_ask_each_worker_once(tmp_path: Path) -> None:
    server = await InProcessServer(tmp_path / "server", 1).open()
    try:
        for name in NAMES:
            await server.worker(name)
        with counting() as asked:
            job = await server.submit(server.admin, "nowhere")
            for _ in range(4):
                await server.submit(server.admin, "nowhere")
            await server.submit(server.admin, "nowhere", dry_run=True)
        assert asked.workers == len(NAMES)
        waits = await server.good("GET", f"/api/jobs/{job}/explain")
        assert waits["code"] == "LABELS_MATCH_NONE"

        with counting() as asked:
            worker = server.workers["gpu0"]
            offer = await worker.offer_of(await server.submit(server.admin, "gpu0"))
            await worker.accept(offer)
            await server.submit(server.admin, "nowhere")
            await worker.report(offer, "completed", exit_code=0)
            await server.submit(server.admin, "nowhere")
        assert asked.workers == 0, "what others do changes nothing of it"

        await server.worker("gpu3")
        with counting() as asked:
            await server.submit(server.admin, "nowhere")
        assert asked.workers == len(NAMES) + 1
    finally:
        await server.close()
