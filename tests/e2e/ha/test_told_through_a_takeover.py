"""The leader is killed while messages are under way: whoever leads next goes on from the cursor, and nothing is lost."""

import asyncio
from functools import partial
from typing import Any

import httpx2

from tests.delivery.receivers import Hook, Posted, hook, until
from tests.e2e.ha.several import Several
from tests.e2e.kit import Json
from tests.e2e.processes import PATIENCE_S, wait_until

JOBS = 6
CHOSEN = {"siem": ["audit"], "chat": ["job.approved", "job.completed"]}


class Story:
    """A robot's jobs need an approval, so that each is told of twice."""

    def __init__(self, several: Several) -> None:
        several.world.settings |= {
            "SIMPLETUNER_NOTIFY_NETWORKS": "127.0.0.0/8",
            "SIMPLETUNER_REQUIRE_APPROVAL": "true",
        }
        self.world = several.world
        self.leader, self.follower = several.pair()
        self.world.start_worker("steady", url=several.both_urls())
        self.jobs: list[str] = []

    def listen(self, name: str, address: str) -> None:
        body = {"name": name, "channel": "webhook", "address": address, "events": CHOSEN[name]}
        self.world.post("/api/notifications", {**body, "scope": "all"})

    def submit_all(self) -> None:
        robot = self.world.post(
            "/api/admin/tokens",
            {"name": "robot", "permissions": ["queue.submit", "queue.submit.command"]},
        )["token"]
        body = {"target": "worker", "config": self.world.command("true")}
        for _ in range(JOBS):
            answer = httpx2.post(
                f"{self.world.url}/api/queue/submit",
                json=body,
                headers={"authorization": f"Bearer {robot}"},
                timeout=PATIENCE_S,
            )
            assert answer.is_success, answer.text
            self.jobs.append(answer.json()["job_id"])

    def approve(self, *which: int) -> None:
        """Again and again, as a person would who is told that nobody leads."""

        def approved(job_id: str) -> bool:
            try:
                answer = self.follower.call("POST", f"/api/queue/{job_id}/approve", {})
            except httpx2.TransportError:
                return False
            assert answer.is_success or answer.status_code in (409, 503), answer.text
            return answer.status_code != 503

        for at in which:
            wait_until(partial(approved, self.jobs[at]), f"job {at} is approved")

    def all_complete(self) -> None:
        for job_id in self.jobs:
            self.world.becomes(job_id, "completed")


def entries(posted: Posted) -> list[Json]:
    data: Json = posted.document["data"]
    return data["entries"] if "entries" in data else [{"type": posted.document["type"], **data}]


def read_once(receiver: Hook) -> list[Json]:
    """What a receiver makes of it: a message whose id it knows is the same message."""
    known: dict[str, Posted] = {}
    read = []
    for posted in receiver.got:
        before = known.setdefault(posted.headers["webhook-id"], posted)
        assert before.body == posted.body
        if before is posted:
            read += entries(posted)
    seqs = [one["seq"] for one in read]
    assert seqs == sorted(set(seqs)), "in the order of the log, and none by two messages"
    return read


async def test_messages_under_way_while_the_leader_is_killed_come_once_more_and_none_is_lost(
    several: Several,
) -> None:
    story: Story = await asyncio.to_thread(Story, several)
    async with hook() as siem, hook() as chat:

        async def have(siem_count: int, chat_count: int, within_s: float = PATIENCE_S) -> None:
            await until(lambda: len(siem.got) >= siem_count and len(chat.got) >= chat_count, within_s)

        for name, receiver in (("siem", siem), ("chat", chat)):
            await asyncio.to_thread(story.listen, name, receiver.url)
        await asyncio.to_thread(story.submit_all)
        await asyncio.to_thread(story.approve, 0, 1)
        await have(1, 2)
        siem.frozen = chat.frozen = True
        before = len(siem.got), len(chat.got)
        await asyncio.to_thread(story.approve, 2, 3)
        await have(before[0] + 1, before[1] + 1)
        under_way = [receiver.got[-1].headers["webhook-id"] for receiver in (siem, chat)]
        await asyncio.to_thread(story.leader.running.kill)
        siem.frozen = chat.frozen = False
        await asyncio.to_thread(story.approve, 4, 5)
        await asyncio.to_thread(story.all_complete)
        head = (await asyncio.to_thread(story.world.get, "/api/audit"))["entries"][0]["id"]

        def is_all_told() -> bool:
            return read_once(siem)[-1]["seq"] >= head and len(read_once(chat)) >= 2 * JOBS

        await until(is_all_told, PATIENCE_S)
        for receiver, message_id in zip((siem, chat), under_way, strict=True):
            times = [posted.headers["webhook-id"] for posted in receiver.got].count(message_id)
            assert times >= 2, "it was under way, so it is told again"
    _whole(read_once(siem), read_once(chat), story.jobs)


def _whole(log: list[Json], notices: list[Json], jobs: list[str]) -> None:
    seqs = [entry["seq"] for entry in log]
    assert seqs == list(range(seqs[0], seqs[-1] + 1)), "no entry of the log is left out"
    by_job: dict[str, list[Any]] = {job_id: [] for job_id in jobs}
    for one in notices:
        by_job[one["job_id"]].append(one["type"])
    assert by_job == {job_id: ["job.approved", "job.completed"] for job_id in jobs}
