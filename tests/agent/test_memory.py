"""The agent gives back what it no longer needs."""

import subprocess
import sys

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
