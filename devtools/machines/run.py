"""One run: jobs that come all the while, clouds that fail, a server that is killed; then everything has to come to rest."""

import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from random import Random

import httpx2

from devtools.machines.clouds import BOOT_S, IDLE_S, MOST, SETTLE_S, SWEEP_S, Bill, Cloud, three_clouds
from simpletuner_fleet.core.provisioning.upkeep import HEARD_AGAIN_WITHIN_S
from tests.e2e.kit import World
from tests.e2e.processes import wait_until

LOOK_S = 0.1
SUBMIT_S, DISTURB_S, KILL_S = 2.0, 1.5, 60.0
REST_S = 900.0
FAULT_S = 45.0
"""So much longer a bill may run where a call failed: after a 429 without a time nobody is asked for 5 s and longer, and
what was killed has to start. Without faults it is nothing."""


class Judge:
    """Looks at what exists and costs, all the time and at the end."""

    def __init__(self, clouds: list[Cloud]) -> None:
        self.clouds = clouds
        self.broken: list[str] = []
        self.most: Counter[str] = Counter()
        self.kills: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            for cloud in self.clouds:
                self._look(cloud)

    def _look(self, cloud: Cloud) -> None:
        running = [bill for bill in cloud.bills() if bill.ended_at is None]
        hourly = sum(bill.hourly for bill in running)
        self.most[cloud.name] = max(self.most[cloud.name], len(running))
        if len(running) > MOST:
            self.broken.append(f"{cloud.name}: {len(running)} machines, {MOST} allowed")
        if cloud.most_hourly is not None and hourly > cloud.most_hourly + 1e-9:
            self.broken.append(f"{cloud.name}: {hourly:.2f} an hour, {cloud.most_hourly} allowed")

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def of_the_end(self, world: World, jobs: list[str]) -> dict[str, float]:
        """Adds what was broken, and returns how long the bills ran on after the last use, by cloud."""
        last_use = self._last_uses(world, jobs)
        joined = {one["name"] for one in world.get("/api/machines?gone=true")["machines"] if one["joined_at"]}
        longest: dict[str, float] = {}
        for cloud in self.clouds:
            names = Counter(bill.name for bill in cloud.bills())
            self.broken += [f"{cloud.name}: {name} was made {n} times" for name, n in names.items() if n > 1]
            for bill in cloud.bills():
                tail_s = self._tail_s(cloud, bill, last_use.get(bill.name, 0.0), bill.name in joined)
                if bill.name in joined:
                    longest[cloud.name] = max(longest.get(cloud.name, 0.0), tail_s)
        return longest

    def _tail_s(self, cloud: Cloud, bill: Bill, used_at: float, joined: bool) -> float:
        if bill.ended_at is None:
            self.broken.append(f"{cloud.name}: {bill.name} still costs")
            return 0.0
        tail_s = bill.ended_at - max(used_at, bill.made_at)
        allowed_s = (IDLE_S if used_at else BOOT_S + IDLE_S) + SWEEP_S + SETTLE_S + FAULT_S
        if any(bill.made_at <= at <= bill.ended_at for at in self.kills) and not (joined and used_at):
            allowed_s += HEARD_AGAIN_WITHIN_S
        if tail_s > allowed_s:
            self.broken.append(f"{cloud.name}: {bill.name} cost for {tail_s:.0f} s, {allowed_s:.0f} allowed")
        return tail_s

    @staticmethod
    def _last_uses(world: World, jobs: list[str]) -> dict[str, float]:
        """By name of machine, when the last attempt there ended, by the monotonic clock."""
        ahead, uses = time.time() - time.monotonic(), dict[str, float]()
        for job_id in jobs:
            for attempt in world.attempts(job_id):
                name, ended = attempt["worker_name"], attempt["ended_at"]
                if ended is not None:
                    at = datetime.fromisoformat(ended).timestamp() - ahead
                    uses[name] = max(uses.get(name, 0.0), at)
        return uses


class Story:
    def __init__(self, world: World, clouds: list[Cloud], judge: Judge, seed: int) -> None:
        self.world, self.clouds, self.judge = world, clouds, judge
        self.chance = Random(seed)
        self.jobs: list[str] = []
        self.faults: Counter[str] = Counter()

    def suffer(self, for_s: float) -> None:
        begun = time.monotonic()
        due = {self._submit: begun, self._disturb: begun, self._kill: begun + KILL_S}
        every = {self._submit: SUBMIT_S, self._disturb: DISTURB_S, self._kill: KILL_S}
        while (now := time.monotonic()) < begun + for_s:
            for act in [act for act, at in due.items() if at <= now]:
                act()
                due[act] = time.monotonic() + every[act] * self.chance.uniform(0.5, 1.5)
            time.sleep(LOOK_S)

    def _submit(self) -> None:
        seconds = self.chance.choice(("0.2", "1", "3"))
        config = self.world.command("sleep", seconds, resources={"gpus": 0})
        cloud = self.chance.choice(self.clouds)
        wanted = {"worker_labels": {"pool": cloud.name}, "max_retries": 50}
        self.jobs.append(self.world.submit(config, **wanted))

    def _disturb(self) -> None:
        cloud = self.chance.choice(self.clouds)
        self.faults[f"{cloud.name}: {cloud.disturb(self.chance)}"] += 1

    def _kill(self) -> None:
        self.world.kill_server()
        self.world.restart_server()
        self.judge.kills.append(time.monotonic())

    def rest(self) -> None:
        for cloud in self.clouds:
            cloud.heal()
        wait_until(lambda: not self._left(), "every job completes and no machine is left", REST_S)

    def _left(self) -> list[str]:
        with suppress(httpx2.TransportError):
            left = [id for id in self.jobs if self.world.job(id)["status"] != "completed"]
            machines = self.world.get("/api/machines")["machines"]
            costs = [bill.name for cloud in self.clouds for bill in cloud.bills() if bill.ended_at is None]
            time.sleep(0.5)
            return [*left, *(one["name"] for one in machines), *costs]
        return ["nobody answers"]


def run(minutes: float, seed: int) -> int:
    folder = Path(tempfile.mkdtemp(prefix="fleet-machines-"))
    world = World(folder)
    with three_clouds(folder, world.environment) as clouds:
        judge = Judge(clouds)
        story = Story(world, clouds, judge, seed)
        try:
            world.start_server()
            for cloud in clouds:
                world.put(f"/api/secrets/{cloud.name}-key", {"value": cloud.secret})
                world.put(f"/api/pools/{cloud.name}", cloud.request)
            story.suffer(minutes * 60)
            story.rest()
            longest = judge.of_the_end(world, story.jobs)
            return _told(story, judge, longest)
        finally:
            judge.close()
            world.close()


def _told(story: Story, judge: Judge, longest: dict[str, float]) -> int:
    for kind, count in sorted(story.faults.items()):
        print(f"{count:6d}  {kind}")
    for cloud in judge.clouds:
        print(
            f"{cloud.name}: {len(cloud.bills())} machines, at most {judge.most[cloud.name]} at once;"
            f" the longest bill after its last job {longest.get(cloud.name, 0.0):.1f} s (idle time {IDLE_S} s)"
        )
    print(f"{len(story.jobs)} jobs completed, the server was killed {len(judge.kills)} times")
    for line in dict.fromkeys(judge.broken):
        print(f"BROKEN: {line}", file=sys.stderr)
    return 1 if judge.broken else 0
