"""Lists the settings that most people change, by trainer, and configs to begin with; other settings are kept."""

from typing import Any, Literal

from msgspec import Struct

from simpletuner_fleet.core.configs.bundle import MIXED_PRECISION
from simpletuner_fleet.languages import N_

Kind = Literal["text", "number", "choice", "lines"]


class Field(Struct, frozen=True, kw_only=True):
    keys: tuple[str, ...]
    """The name it has in the settings; more where trainers had other names for it before."""
    label: str
    kind: Kind = "text"
    choices: tuple[str, ...] = ()
    """For a text they are proposals."""
    hint: str = ""
    wide: bool = False


MODEL_FAMILIES = (
    *(
        "flux",
        "flux2",
        "sdxl",
        "sd3",
        "sd1x",
        "sd2x",
        "pixart_sigma",
        "sana",
        "auraflow",
        "kolors",
        "lumina2",
    ),
    *("hidream", "qwen_image", "z_image", "chroma", "ltxvideo", "wan"),
)
STEPS = Field(keys=("max_train_steps",), label=N_("Training steps"), kind="number")
BATCH = Field(keys=("train_batch_size",), label=N_("Batch size"), kind="number")
RATE = Field(keys=("learning_rate",), label=N_("Learning rate"), kind="number")
SEED = Field(keys=("seed",), label=N_("Seed"), kind="number")
CHECKPOINTS = Field(
    keys=("checkpoint_step_interval", "checkpointing_steps"),
    label=N_("Steps between checkpoints"),
    kind="number",
    hint=N_("At most this much work is lost if the worker dies."),
)
VALIDATION = Field(
    keys=("validation_step_interval", "validation_steps"),
    label=N_("Steps between sample images"),
    kind="number",
)
PRECISION = Field(
    keys=("mixed_precision",), label=N_("Mixed precision"), kind="choice", choices=MIXED_PRECISION
)
FOLDER = Field(keys=("cwd",), label=N_("Working folder on the worker"))
ARGUMENTS = Field(keys=("args",), label=N_("Arguments, one per line"), kind="lines", wide=True)
LAUNCHER = (
    Field(keys=("script",), label=N_("Script on the worker"), hint=N_("Set either a script or a module.")),
    Field(keys=("module",), label=N_("Python module")),
    ARGUMENTS,
    Field(keys=("num_processes",), label=N_("Processes"), kind="number"),
)

FIELDS: dict[str, tuple[Field, ...]] = {
    "simpletuner": (
        Field(keys=("model_family",), label=N_("Model family"), choices=MODEL_FAMILIES),
        Field(keys=("model_type",), label=N_("Model type"), kind="choice", choices=("lora", "full")),
        Field(keys=("model_flavour",), label=N_("Model flavour")),
        Field(
            keys=("pretrained_model_name_or_path",),
            label=N_("Base model"),
            hint=N_("A model on the Hugging Face Hub, or a path on the worker."),
            wide=True,
        ),
        Field(keys=("resolution",), label=N_("Resolution"), kind="number"),
        BATCH,
        RATE,
        STEPS,
        CHECKPOINTS,
        Field(keys=("lora_rank",), label=N_("LoRA rank"), kind="number"),
        SEED,
        PRECISION,
        Field(keys=("optimizer",), label=N_("Optimizer")),
        VALIDATION,
        Field(keys=("validation_prompt",), label=N_("Sample image prompt"), wide=True),
    ),
    "demo": (
        STEPS,
        BATCH,
        RATE,
        CHECKPOINTS,
        VALIDATION,
        SEED,
        Field(keys=("demo_device",), label=N_("Device"), kind="choice", choices=("auto", "cpu", "cuda")),
    ),
    "command": (
        Field(
            keys=("command",),
            label=N_("Command, one argument per line"),
            kind="lines",
            hint=N_("{config} and {output_dir} stand for the config file and the output folder."),
            wide=True,
        ),
        FOLDER,
    ),
    "accelerate": (*LAUNCHER, PRECISION, FOLDER),
    "torchrun": (*LAUNCHER, FOLDER),
}


def _lora(family: str, model: str, **other: Any) -> dict[str, Any]:
    settings = {
        "model_family": family,
        "model_type": "lora",
        "pretrained_model_name_or_path": model,
        "resolution": 1024,
        "train_batch_size": 1,
        "learning_rate": 1e-4,
        "max_train_steps": 2000,
        "checkpoint_step_interval": 250,
        "lora_rank": 16,
        "seed": 42,
        "mixed_precision": "bf16",
    }
    return {"trainer": "simpletuner", "settings": {**settings, **other}}


STARTERS: dict[str, dict[str, Any]] = {
    "simpletuner": _lora("flux", "black-forest-labs/FLUX.1-dev"),
    "sdxl": _lora("sdxl", "stabilityai/stable-diffusion-xl-base-1.0", train_batch_size=4),
    "sd3": _lora("sd3", "stabilityai/stable-diffusion-3.5-medium"),
    "qwen-image": _lora("qwen_image", "Qwen/Qwen-Image"),
    "flux2": _lora("flux2", "black-forest-labs/FLUX.2-klein-base-4B", model_flavour="klein-4b"),
    "z-image": _lora("z_image", "TONGYI-MAI/Z-Image", model_flavour="base"),
    "wan": _lora(
        "wan", "Wan-AI/Wan2.1-T2V-1.3B-Diffusers", model_flavour="t2v-480p-1.3b-2.1", resolution=480
    ),
    "demo": {
        "trainer": "demo",
        "settings": {"max_train_steps": 2000, "checkpoint_step_interval": 500, "seed": 42},
        "resources": {"gpus": 0},
    },
    "command": {
        "trainer": "command",
        "settings": {"command": ["python", "train.py", "--config", "{config}", "--out", "{output_dir}"]},
    },
}
"""Each is a sound beginning that passes every check; of a trainer that has several, its own name is the first."""
STARTER_NAMES = {
    "simpletuner": N_("a LoRA of FLUX.1 with SimpleTuner"),
    "sdxl": N_("a LoRA of Stable Diffusion XL with SimpleTuner"),
    "sd3": N_("a LoRA of Stable Diffusion 3.5 with SimpleTuner"),
    "qwen-image": N_("a LoRA of Qwen-Image with SimpleTuner"),
    "flux2": N_("a LoRA of FLUX.2 klein with SimpleTuner"),
    "z-image": N_("a LoRA of Z-Image with SimpleTuner"),
    "wan": N_("a LoRA of Wan 2.1 (video) with SimpleTuner"),
    "demo": N_("the small demo training"),
    "command": N_("any command"),
}
