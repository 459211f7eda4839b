"""Reads `config.env`, the shell variables in which older trainers kept all settings, and newer ones a few."""

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from simpletuner_fleet.core.configs.bundle import ENV_NAME, RESERVED_ENV
from simpletuner_fleet.languages import _

OTHER_NAMES = {
    "ACCELERATE_CONFIG_PATH": "accelerate_config",
    "CHECKPOINTING_LIMIT": "checkpoints_total_limit",
    "CHECKPOINTING_STEPS": "checkpoint_step_interval",
    "DATALOADER_CONFIG": "data_backend_config",
    "HUB_MODEL_NAME": "hub_model_id",
    "LR_SCHEDULE": "lr_scheduler",
    "MAX_NUM_STEPS": "max_train_steps",
    "MINIMUM_RESOLUTION": "minimum_image_size",
    "MODEL_NAME": "pretrained_model_name_or_path",
    "NUM_EPOCHS": "num_train_epochs",
    "PUSH_CHECKPOINTS": "push_checkpoints_to_hub",
    "RESUME_CHECKPOINT": "resume_from_checkpoint",
    "TRAINER_DYNAMO_BACKEND": "dynamo_backend",
    "TRAINING_DYNAMO_BACKEND": "dynamo_backend",
    "TRAINING_NUM_MACHINES": "num_machines",
    "TRAINING_NUM_PROCESSES": "num_processes",
    "TRAINING_SEED": "seed",
    "USE_GRADIENT_CHECKPOINTING": "gradient_checkpointing",
    "USE_XFORMERS": "enable_xformers_memory_efficient_attention",
    "VALIDATION_STEPS": "validation_step_interval",
}
"""Variables that do not bear the name of their setting."""
SAME_NAMES = re.compile(
    "ALLOW_TF32|ASPECT_BUCKET_ROUNDING|AWS_MAX_POOL_CONNECTIONS|BASE_MODEL_PRECISION|CAPTION_DROPOUT_PROBABILITY"
    "|CHECKPOINT_(STEP|EPOCH)_INTERVAL|DEEPFLOYD_VALIDATION_.+|DISABLE_BENCHMARK|ENABLE_CHUNKED_FEED_FORWARD"
    "|FEED_FORWARD_CHUNK_SIZE|FLUX_.+|GRADIENT_(ACCUMULATION|CHECKPOINTING)_.+|IMAGE_PROCESSING_BATCH_SIZE"
    "|INFERENCE_SCHEDULER_TIMESTEP_SPACING|LEARNING_RATE|LORA_(TYPE|RANK|ALPHA)|LR_END|LR_WARMUP_STEPS|LTX2_.+"
    "|LYCORIS_CONFIG|METADATA_UPDATE_INTERVAL|MIXED_PRECISION|MODEL_CARD_SAFE_FOR_WORK|MODEL_FAMILY|MODEL_TYPE"
    "|OPTIMIZER|OUTPUT_DIR|PIXART_VALIDATION_.+|POST_(CHECKPOINT|UPLOAD)_SCRIPT|PUBLISHING_CONFIG"
    "|PUSH_TO_HUB(_BACKGROUND)?|QUANTIZATION_CONFIG|QUANTIZE_VIA|QWEN_TEXT_ENCODER_MODEL_NAME_OR_PATH"
    "|(READ|WRITE)_BATCH_SIZE|RESOLUTION(_TYPE)?|SDNQ_.+|SDXL_VALIDATION_.+|TEXT_(CACHE|ENCODER)_.+|TORCH_NUM_THREADS"
    "|TRACKER_(PROJECT|RUN)_NAME|TRAINING_SCHEDULER_TIMESTEP_SPACING|TRAIN_BATCH_SIZE|USE_DORA|USE_EMA"
    "|VALIDATE_AFTER_.+|VALIDATION_.+|WAN_VALIDATION_.+"
)
"""Variables whose setting is the same in small letters."""
LAUNCHING = frozenset({"num_processes", "num_machines", "dynamo_backend", "mixed_precision"})
"""What the trainer reads of a `config.env` beside its `config.json`: how it is launched."""
BITFIT = "USE_BITFIT"
EXTRA = ("TRAINER_EXTRA_ARGS", "DEBUG_EXTRA_ARGS")
SECRET = re.compile(r".*(TOKEN|SECRET|PASSWORD|API_KEY|ACCESS_KEY).*", re.IGNORECASE)
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_LINE = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)(\+?)=(.*)")
_REFERENCE = re.compile(r"\$\{(\w+)\}|\$(\w+)")


def read_variables(text: str, file: Path, notes: list[str]) -> dict[str, str]:
    """Reads variables as a shell would: quotes, comments, references to earlier ones; `+=` adds with a space."""
    variables: dict[str, str] = {}
    for line in _logical_lines(text):
        match = _LINE.fullmatch(line)
        if not match:
            notes.append(_("%(file)s: skipped a line that sets no variable: %(line)s", file=file, line=line))
            continue
        name, adds, value = match.groups()
        value = _unquoted(value, variables)
        variables[name] = f"{variables.get(name, '')} {value}".strip() if adds else value
    return variables


def settings_of_variables(
    variables: Mapping[str, str], notes: list[str], *, only_launching: bool = False
) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns settings, and variables for the trainer's environment; neither gets a secret's value."""
    settings: dict[str, Any] = {}
    env: dict[str, str] = {}
    for name, value in variables.items():
        setting = OTHER_NAMES.get(name) or (name.lower() if SAME_NAMES.fullmatch(name) else None)
        if setting and (not only_launching or setting in LAUNCHING):
            settings |= {setting: _typed(value)} if value else {}
        elif name == BITFIT and not only_launching:
            settings |= {"layer_freeze_strategy": "bitfit"} if _typed(value) is True else {}
        elif name in EXTRA and not only_launching:
            settings |= dict(_words(value))
        elif value and SECRET.fullmatch(name):
            notes.append(
                _(
                    "%(name)s was left out: store it with  simpletuner secrets set NAME  and reference "
                    "it under secrets",
                    name=name,
                )
            )
        elif name.upper().startswith(RESERVED_ENV):
            notes.append(_("%(name)s was left out: that name is reserved for the worker", name=name))
        elif value and ENV_NAME.fullmatch(name):
            env[name] = value
    return settings, env


def _logical_lines(text: str) -> Iterator[str]:
    for line in text.replace("\\\n", " ").splitlines():
        line = line.strip()
        if line and not line.startswith("#"):
            yield line


def _unquoted(value: str, variables: Mapping[str, str]) -> str:
    value = value.strip()
    if len(value) > 1 and value[0] == value[-1] == "'":
        return value[1:-1]
    if value.startswith("(") and value.endswith(")"):
        value = value[1:-1].strip()
    try:
        words = shlex.split(value, comments=True)
    except ValueError:
        words = [value.strip("\"'")]
    return _REFERENCE.sub(lambda match: variables.get(match[1] or match[2], match[0]), " ".join(words))


def _words(text: str) -> Iterator[tuple[str, Any]]:
    """Reads `--name=value`, `--name value` and `--switch` as settings."""
    try:
        words = shlex.split(text)
    except ValueError:  # an apostrophe: a shell that puts a variable into a command reads no quotes in it
        words = text.split()
    for at, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        follows = words[at + 1] if at + 1 < len(words) else "--"
        yield name, _typed(value if equals else "true" if follows.startswith("--") else follows)


def _typed(value: str) -> Any:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not NUMBER.fullmatch(value):
        return value
    return int(value) if value.lstrip("+-").isdecimal() else float(value)
