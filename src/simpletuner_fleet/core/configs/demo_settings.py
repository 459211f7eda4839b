"""Checks settings of the demo trainer, which is always installed: no worker needs to report them."""

from collections.abc import Iterator

from simpletuner_fleet.core.configs.bundle import MOST_TOLD_CHARS, Bundle
from simpletuner_fleet.core.configs.options import OptionFinding, Spelling, first_of
from simpletuner_fleet.core.cutting import excerpt

DEMO = "demo"
DEMO_SETTINGS = (
    "checkpoint_step_interval",
    "checkpointing_steps",
    "checkpoints_total_limit",
    "demo_allocate_gb",
    "demo_crash_signal",
    "demo_crash_signal_at_step",
    "demo_device",
    "demo_fail_at_step",
    "demo_fail_message",
    "demo_faults_on_attempts",
    "demo_guard_delay_s",
    "demo_hang_at_step",
    "demo_ignore_sigterm",
    "demo_nan_at_step",
    "demo_step_delay_s",
    "learning_rate",
    "lr_warmup_steps",
    "max_train_steps",
    "num_eval_images",
    "num_processes",
    "output_dir",
    "resume_from_checkpoint",
    "seed",
    "train_batch_size",
    "validation_step_interval",
    "validation_steps",
)


def check_demo_settings(bundle: Bundle) -> list[OptionFinding]:
    """Returns warnings only: the demo accepts a config for SimpleTuner and ignores what it does not use."""
    return first_of(_ignored(bundle), worst="warning") if bundle.trainer == DEMO else []


def _ignored(bundle: Bundle) -> Iterator[OptionFinding]:
    spelling = Spelling(DEMO_SETTINGS)
    for key in bundle.settings:
        name = key.lstrip("-").replace("-", "_")
        if name not in DEMO_SETTINGS:
            yield OptionFinding(
                path=f"$.settings.{excerpt(key, MOST_TOLD_CHARS)}",
                level="warning",
                detail=f"The demo trainer has no setting '{excerpt(name, MOST_TOLD_CHARS)}': it is ignored.",
                next=spelling.guess(name),
            )
