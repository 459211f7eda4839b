"""Builds a job that proves that everything works: a small model of the demo trainer, for one machine or any."""

from typing import Any

import msgspec

STEPS = 200


def demo_job(name: str, target: str, gpus: int, labels: dict[str, str] | None = None) -> str:
    """Returns the body of the job's submission."""
    body: dict[str, Any] = {
        "name": name,
        "target": target,
        "gpus": gpus,
        "config": {
            "trainer": "demo",
            "settings": {
                "max_train_steps": STEPS,
                "checkpointing_steps": STEPS // 4,
                "validation_steps": STEPS // 2,
            },
        },
    }
    return msgspec.json.encode(body | {"worker_labels": labels} if labels else body).decode()
