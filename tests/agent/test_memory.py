"""The agent gives back what it no longer needs."""

import asyncio
import subprocess
import sys
from threading import Event

from simpletuner_fleet.agent.memory import few_threads

STORY = """
import asyncio, resource
from simpletuner_fleet.agent.memory import few_threads, stay_small

def resident():
    for line in open("/proc/self/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1])

def churn():
    held = [bytes(1024 * 1024 + number * 4096) for number in range(24)]
    return len(held)

async def main():
    stay_small()
    few_threads()
    await asyncio.gather(*(asyncio.to_thread(churn) for _ in range(4)))
    before = resident()
    for _ in range(6):
        await asyncio.gather(*(asyncio.to_thread(churn) for _ in range(32)))
    print(resident() - before)

asyncio.run(main())
"""


def test_large_buffers_of_many_threads_leave_nothing_behind() -> None:
    completed = subprocess.run([sys.executable, "-c", STORY], capture_output=True, text=True, check=True)
    assert int(completed.stdout) < 8 * 1024, "kibibytes that stayed"


async def test_the_disks_of_eight_jobs_may_hang_and_the_outcome_of_a_ninth_is_written_down() -> None:
    few_threads()
    goes_on = Event()
    loop = asyncio.get_running_loop()
    looks = [loop.run_in_executor(None, goes_on.wait) for _ in range(8 * 4)]
    try:
        async with asyncio.timeout(10.0):
            await asyncio.to_thread(lambda: None)
    finally:
        goes_on.set()
        await asyncio.gather(*looks)
