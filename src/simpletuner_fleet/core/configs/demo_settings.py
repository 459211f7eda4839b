"""Checks settings of the demo trainer, which is always installed: no worker needs to report them."""

import difflib

from simpletuner_fleet.core.configs.bundle import Bundle
from simpletuner_fleet.core.configs.options import OptionFinding

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
    findings: list[OptionFinding] = []
    for key in bundle.settings if bundle.trainer == DEMO else ():
        name = key.lstrip("-").replace("-", "_")
        if name in DEMO_SETTINGS:
            continue
        near = difflib.get_close_matches(name, DEMO_SETTINGS, n=1, cutoff=0.75)
        findings.append(
            OptionFinding(
                path=f"$.settings.{key}",
                level="warning",
                detail=f"The demo trainer has no setting '{name}': it is ignored.",
                next=f"Did you mean '{near[0]}'?" if near else None,
            )
        )
    return findings
