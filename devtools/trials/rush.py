"""`./dev rush`: thousands of submissions in one moment against quotas, and how many got through.

The real server without sockets, on SQLite and on a throwaway PostgreSQL. Of two quotas one refuses and one lets wait;
nothing that began ends, so what has begun when all is answered is the most that ever ran.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from devtools.fuzz.in_process_server import CPU_JOB, InProcessServer
from devtools.postgres import running_postgres
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.ports import JobFilter, Store
from simpletuner_fleet.store import open_store

PEOPLE = 8
REFUSED_FROM = 0.5
"""The share of the submissions that the quota which refuses lets through."""
RUNNING_FROM = 0.05
"""The share that the quota which lets wait lets run."""


async def rush(folder: Path, store: Store, submissions: int) -> dict[str, Any]:
    """Submits them all at once and returns what came of it."""
    admitted, running = int(submissions * REFUSED_FROM), int(submissions * RUNNING_FROM)
    server = await InProcessServer(folder, 1, Policy(), store).open()
    try:
        people = [await server.user(f"person-{at}", "member") for at in range(PEOPLE)]
        for quota in (
            {"kind": "jobs_per_hour", "ceiling": admitted, "action": "refuse"},
            {"kind": "running_jobs", "ceiling": running, "action": "wait"},
        ):
            await server.good("POST", "/api/quotas", {"scope": "all", **quota})
        await server.worker("gpu", min(1024, submissions))
        body = json.dumps({"config": CPU_JOB, "target": "worker"}).encode()
        began = time.perf_counter()
        answers = await asyncio.gather(
            *(
                server.ask("POST", "/api/queue/submit", body, people[at % PEOPLE], patience_s=3600.0)
                for at in range(submissions)
            )
        )
        took = time.perf_counter() - began
        stored, live = await server.store.read(
            lambda view: (len(view.jobs_page(JobFilter(), None, submissions + 1)), len(view.live_attempts()))
        )
        return {
            "submissions": submissions,
            "answers": dict(Counter(answer.status for answer in answers)),
            "ceiling_of_admitted": admitted,
            "stored": stored,
            "ceiling_of_running": running,
            "begun": live,
            "seconds": round(took, 1),
        }
    finally:
        await server.close()


def kept(outcome: dict[str, Any]) -> bool:
    """Tells whether everything that quotas allow happened, and nothing beyond."""
    admitted, refused = outcome["answers"].get(200, 0), outcome["answers"].get(409, 0)
    return bool(
        admitted == outcome["stored"] == outcome["ceiling_of_admitted"]
        and admitted + refused == outcome["submissions"]
        and outcome["begun"] == outcome["ceiling_of_running"]
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev rush", description=__doc__)
    parser.add_argument("--submissions", type=int, default=10_000)
    args = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory(prefix="rush-") as folder, running_postgres() as postgres:
        for name, url in (("sqlite", f"sqlite:///{folder}/fleet.db"), ("postgresql", postgres)):
            outcome = asyncio.run(rush(Path(folder) / name, open_store(url), args.submissions))
            good = good and kept(outcome)
            print(json.dumps({"database": name, **outcome, "kept": kept(outcome)}), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
