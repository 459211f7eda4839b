"""A small agent for tests that kill or freeze one: runs the order in a file and renews its lease while it lives.

SIGUSR1 makes it cancel.
"""

import asyncio
import signal
import sys
from functools import partial
from pathlib import Path

import msgspec

from simpletuner_fleet.agent.guard.runner import Runner
from simpletuner_fleet.agent.guard.shim_client import Order
from simpletuner_fleet.core.jobs.job import Outcome


async def main(order: Order, lease_s: float | None) -> None:
    async with Runner() as runner:
        running = await runner.go(await runner.hold(await runner.take(), order), lease_s)
        cancel = partial(running.stop, 600, outcome=Outcome.CANCELLED)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, cancel)
        print(running.pid, flush=True)
        while True:
            if lease_s is not None:
                running.renew(lease_s)
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    order = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Order)
    asyncio.run(main(order, float(sys.argv[2]) if len(sys.argv) > 2 else None))
