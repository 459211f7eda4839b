"""Two jobs at once see each its own GPU, although their user's accelerate config names another."""

import re

from devtools.real_trainer.stage import Stage

HOSTILE = """\
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
gpu_ids: '7'
num_processes: 4
main_process_port: 1
num_machines: 1
mixed_precision: fp16
use_cpu: false
debug: false
"""


def run(stage: Stage) -> list[str]:
    start_with_foreign_config(stage)
    jobs = [stage.submit(stage.settings(max_train_steps=4), gpus=1) for _ in range(2)]
    assert [stage.ended(job_id)["status"] for job_id in jobs] == ["completed", "completed"]
    seen = sorted(_seen(stage.log(job_id)) for job_id in jobs)
    assert seen == ["0", "1"], seen
    return [f"two jobs at once on two declared GPUs: their processes saw GPU {seen[0]} and GPU {seen[1]}"]


def start_with_foreign_config(stage: Stage) -> None:
    home = stage.folder / "hf"
    (home / "accelerate").mkdir(parents=True)
    (home / "accelerate" / "default_config.yaml").write_text(HOSTILE)
    env = {"HF_HOME": str(home), "REAL_TRAINER_TELL": "1"}
    stage.worker("one", gpus=2, max_jobs=2, env=env, job_paths=(home,))


def _seen(log: str) -> str:
    seen = set(re.findall(r"REAL_TRAINER sees GPUs '([^']*)'", log))
    assert len(seen) == 1, seen
    return str(seen.pop())
