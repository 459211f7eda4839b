"""The agent's own uploading, alone in a process: one checkpoint, from its folder to its manifest. Prints the seconds."""

import asyncio
import os
import sys
import time
from pathlib import Path

from simpletuner_fleet.agent.ship.uploader import Uploader
from simpletuner_fleet.agent.wire.bandwidth import Bandwidth
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.checkpoints import CheckpointHabits
from simpletuner_fleet.trainers.contract import Paths

TOKEN = "BENCH_WORKER_TOKEN"


async def upload(url: str, job_id: str, epoch: int, attempt_dir: Path) -> float:
    """Returns the seconds for all of it: finding it, its digest, what is missing, the parts, the manifest."""
    offer = JobSubmit(
        job_id=job_id,
        attempt=1,
        attempt_id="bench",
        epoch=epoch,
        config_name="",
        config={},
        trainer="command",
        upload_endpoint="",
    )
    paths = Paths(attempt_dir=attempt_dir, config_dir=attempt_dir, output_dir=attempt_dir / "output")
    client = OrchestratorClient(url, lambda: os.environ[TOKEN], None)
    uploader = Uploader(offer, paths, CheckpointHabits(), client, Bandwidth())
    uploader.trainer_ended(with_artifacts=False)
    began = time.monotonic()
    await uploader.run()
    took_s = time.monotonic() - began
    await client.close()
    if uploader.checkpoint_step is None:
        raise SystemExit("the checkpoint did not arrive")
    return took_s


if __name__ == "__main__":
    orchestrator_url, job, job_epoch, folder = sys.argv[1:]
    print(asyncio.run(upload(orchestrator_url, job, int(job_epoch), Path(folder))))
