"""What the real trainer printed, release by release, and the class, line and advice that follow from it."""

import pytest

from simpletuner_fleet.core.jobs.failure import ADVICE, classify

RANK = "[RANK 0] 22:28:41,517 "

SEEN = {
    "wrong model path (3.1.6)": (
        (
            "We couldn't connect to 'https://huggingface.co' to load this model, couldn't find it in the cached files and "
            "it looks like /no/such/model is not the path to a directory containing a scheduler_config.json file.\n"
            "Checkout your internet connection or see how to run the library in offline mode.\n"
            "Traceback (most recent call last):\n"
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': "
            "'/no/such/model'. Use `repo_type` argument if needed.\n"
            "During handling of the above exception, another exception occurred:\n"
            "Traceback (most recent call last):\n"
            "OSError: We couldn't connect to 'https://huggingface.co' to load this model"
        ),
        "model_missing",
        "/no/such/model",
    ),
    "missing repository (3.1.6)": (
        (
            "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub.\n"
            "Traceback (most recent call last):\n"
            "OSError: nobody/no-such-model does not appear to have a file named scheduler_config.json."
        ),
        "model_missing",
        "nobody/no-such-model",
    ),
    "missing data folder (3.1.6)": (
        (
            f"{RANK}[WARNING] (id=tiny-images) Skipping bucket refresh because data directory was not found: "
            "/no/such/pictures\n"
            f"{RANK}[INFO] (id=tiny-images) Collecting captions.\n"
            "[Errno 2] No such file or directory: '/no/such/pictures'\n"
            "Traceback (most recent call last):\n"
            '  File "/x/trainer.py", line 1, in f\n'
            "FileNotFoundError: [Errno 2] No such file or directory: '/no/such/pictures'"
        ),
        "data_missing",
        "/no/such/pictures",
    ),
    "missing data folder (4.10.1)": (
        (
            "FileNotFoundError: The following dataset directories do not exist:\n"
            "  - (id=pictures) instance_data_dir: /no/such/pictures\n"
            "Please ensure all dataset paths exist before starting training.\n"
            "subprocess.CalledProcessError: Command '['python', '-m', 'simpletuner.train']' returned non-zero exit status 1."
        ),
        "data_missing",
        "/no/such/pictures",
    ),
    "missing dataloader (3.1.6)": (
        (
            "Data backend config file config/missing.json not found.\n"
            "Traceback (most recent call last):\n"
            "FileNotFoundError: Data backend config file config/missing.json not found."
        ),
        "file_missing",
        "config/missing.json",
    ),
    "unknown optimizer (3.1.6)": (
        "Traceback (most recent call last):\nValueError: Optimizer adamw-nonsense not found.",
        "config",
        "adamw-nonsense",
    ),
    "missing captions (3.1.6)": (
        (
            "Caption file /data/000.txt not found.\n"
            "Traceback (most recent call last):\n"
            "FileNotFoundError: Caption file /data/000.txt not found."
        ),
        "captions_missing",
        "/data/000.txt",
    ),
    "missing captions (4.10.1)": (
        (
            "Traceback (most recent call last):\n"
            '    raise FileNotFoundError(f"Caption file {caption_file} not found.")\n'
            "FileNotFoundError: Caption file /data/000.txt not found."
        ),
        "captions_missing",
        "/data/000.txt",
    ),
    "missing lycoris file (3.1.6)": (
        (
            "Lycoris config path '/x/no-lycoris.json' is invalid or outside allowed directory. Must be within: config. "
            "Error: [Errno 2] No such file or directory: '/x'\n"
            "Traceback (most recent call last):\n"
            "FileNotFoundError: [Errno 2] No such file or directory: '/x'"
        ),
        "file_missing",
        "/x/no-lycoris.json",
    ),
    "out of memory (3.1.6)": (
        (
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.99 GiB.\n"
            "Traceback (most recent call last):\n"
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
            "Epoch 1/1, Steps:  50%|####    | 4/8 [00:02<00:02,  1.48it/s, lr=0.001, step_loss=1.07]"
        ),
        "gpu_out_of_memory",
        "Tried to allocate 2.00 GiB",
    ),
}
"""Printed by runs of the releases named, cut to the lines that matter."""

READ = {
    "lycoris file": (
        "ValueError: Could not find lycoris config at 'config/lyco.json'. Looked in: /a/config/lyco.json",
        "file_missing",
        "config/lyco.json",
    ),
    "gated": (
        (
            "huggingface_hub.errors.GatedRepoError: 403 Client Error. Cannot access gated repo for url "
            "https://huggingface.co/black-forest-labs/FLUX.1-dev/resolve/main/config.json."
        ),
        "model_gated",
        "black-forest-labs/FLUX.1-dev",
    ),
    "repository": (
        (
            "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error. Repository Not Found for url: "
            "https://huggingface.co/api/models/nobody/none."
        ),
        "model_missing",
        "nobody/none",
    ),
}
"""As the sources of the trainer and of the hub's client write them."""


@pytest.mark.parametrize("exit_code", [0, 1])
@pytest.mark.parametrize("name", [*SEEN, *READ])
def test_each_real_error_has_its_class_and_the_line_that_names_what_is_missing(
    name: str, exit_code: int
) -> None:
    lines, code, named = {**SEEN, **READ}[name]
    reason = "the trainer ended with an error and exit code 0" if exit_code == 0 else None
    failure = classify(exit_code, None, lines, reason, started=True)
    assert failure.code == code
    assert named in failure.evidence
    assert failure.advice == ADVICE[code]


def test_a_training_script_that_warns_of_other_things_is_not_blamed_for_them() -> None:
    lines = "UserWarning: No such file or directory: '/x'\nTraceback (most recent call last):\nKeyError: 'a'"
    assert classify(1, None, lines, None, started=True).code == "user_code"
