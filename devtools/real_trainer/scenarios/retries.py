"""A failed job is tried again from its checkpoint; the second attempt finds what the first one computed from the data."""

import json
from pathlib import Path

from devtools.real_trainer.stage import Stage

STEPS, FAILS_AT, STORED = 8, 7, 4
ONLINE = {"HF_HUB_OFFLINE": "0"}
"""3.1.6 cannot load a LoRA again while the hub is said to be offline."""


def run(stage: Stage) -> list[str]:
    stage.worker("one", env=ONLINE)
    fault = {"REAL_TRAINER_FAULT": f"oom:{FAILS_AT}"}
    first = stage.submit(stage.settings(max_train_steps=STEPS), env=fault, max_retries=0)
    assert stage.ended(first)["status"] == "failed"
    assert [one["step"] for one in stage.checkpoints(first)] == [STORED], stage.checkpoints(first)
    caches = stage.folder / "one" / "caches"
    computed = _computed(caches)
    assert computed, f"nothing is kept in {caches}"

    # The fault counts the steps of a process: who begins at the start meets it again, and who goes on does not.
    retried = stage.cli("jobs", "retry", first, "--resume-from", f"{first}:{STORED}", "--json")
    second = str(json.loads(retried)["id"])
    job = stage.ended(second)
    assert job["status"] == "completed", job
    assert job["resumed_from_step"] == STORED, job
    later = _computed(caches)
    kept = [name for name, made_at in computed.items() if later.get(name) == made_at]
    pictures = list((stage.material / "pictures").glob("*.png"))
    captions = {path.with_suffix(".txt").read_text() for path in pictures}
    latents = [name for name in kept if "vae" in Path(name).parts]
    texts = [name for name in kept if "text" in Path(name).parts]
    assert len(latents) == len(pictures), (latents, len(pictures))
    # The texts of validations are encoded at every start, by the trainer's own choice; captions are not.
    assert len(texts) >= len(captions), (texts, captions)
    folders = [path for path in caches.iterdir() if path.is_dir()]
    assert len(folders) == 1, folders
    return [
        f"failed at step {FAILS_AT} of {STEPS}, tried again from the checkpoint of step {STORED}, completed",
        f"{len(latents)} latents and {len(texts)} embeddings of the first attempt were found again, none made anew",
    ]


def _computed(caches: Path) -> dict[str, int]:
    """Latents and embeddings, by when they were made; the trainer's lists of them are written at every start."""
    return {str(path): path.stat().st_mtime_ns for path in caches.rglob("*.pt")}
