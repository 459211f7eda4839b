"""Two processes of one job meet and see the job's GPUs, whatever the accelerate config of their user says."""

import re

from devtools.real_trainer.scenarios.gpus import start_with_foreign_config
from devtools.real_trainer.stage import Stage

SCRIPT = """
import os
import torch
import torch.distributed
torch.distributed.init_process_group("gloo")
met = torch.ones(1)
torch.distributed.all_reduce(met)
print(f"rank {torch.distributed.get_rank()} met {int(met)}, sees {os.environ['CUDA_VISIBLE_DEVICES']}", flush=True)
torch.distributed.destroy_process_group()
"""


def run(stage: Stage) -> list[str]:
    start_with_foreign_config(stage)
    config = {
        "trainer": "accelerate",
        "settings": {"script": "ranks.py", "num_processes": 2},
        "files": {"ranks.py": SCRIPT},
    }
    submitted = stage.post("/api/queue/submit", {"config": config, "target": "worker"})
    job = stage.ended(submitted["job_id"])
    log = stage.log(job["id"])
    assert job["status"] == "completed", (job, log[-2000:])
    seen = sorted(re.findall(r"rank (\d) met 2, sees (\S+)", log))
    assert seen == [("0", "0,1"), ("1", "0,1")], (seen, log[-2000:])
    return [f"behind a wall of the kind {stage.wall('one')}: two processes met over gloo, both saw GPUs 0,1"]
