"""Every example of an installed trainer is imported, laid out as a worker does, and read by the trainer's own loader.

    python -m devtools.real_trainer.every_example PYTHON

says how many there are, and fails where one is not imported, or where a file that the trainer's package holds is not where
the trainer then looks for it. What an example names and its package lacks is listed: that is the release's own affair.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from devtools.real_trainer.environments import python_path
from simpletuner_fleet.cli.files import bundles
from simpletuner_fleet.cli.files.examples import example_folder, example_names
from simpletuner_fleet.core.configs.bundle import read_bundle
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.contract import Paths
from simpletuner_fleet.trainers.registry import Registry

READ = r"""
import json, os, re, sys
from pathlib import Path
import simpletuner
from simpletuner.helpers.configuration import json_file

package = Path(simpletuner.__file__).parent
root = Path(sys.argv[1])

def strings(value):
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from strings(inner)

found = {"read": 0, "lost": [], "lacking": []}
for attempt in sorted(path for path in root.iterdir() if path.name != "caches"):
    os.chdir(attempt)
    os.environ["CONFIG_PATH"] = str(attempt / "config" / "config")
    named = [word.partition("=")[2] for word in json_file.load_json_config()]
    dataloader = attempt / "config" / "multidatabackend.json"
    if dataloader.exists():
        named += strings(json.loads(dataloader.read_text()))
    found["read"] += 1
    for name in named:
        is_file = re.search(r"\.(jsonl?|txt|toml|ya?ml|csv)$", name) and " " not in name
        if not (is_file or "examples/" in name) or name.startswith(str(attempt / "output")) or os.path.exists(name):
            continue
        inside = [package / name.removeprefix(prefix) for prefix in ("config/", "simpletuner/")]
        found["lost" if any(path.exists() for path in inside) else "lacking"].append([attempt.name, name])
print("\nfound:" + json.dumps(found))
"""


def lay_out(python: str, root: Path) -> int:
    """Imports each, and writes what a worker would hand to the trainer; returns how many."""
    trainer = Registry.load(trainer_python=python, environment={}).get("simpletuner")
    names = example_names(python)
    for name in names:
        loaded = bundles.load(str(example_folder(name, python)))
        bundle = read_bundle(loaded.bundle)
        attempt = root / name
        for folder in ("config", "output"):
            (attempt / folder).mkdir(parents=True)
        order = JobSubmit(
            job_id="j_1",
            attempt=1,
            attempt_id="a_1",
            epoch=1,
            config_name=loaded.name,
            config=bundle.settings,
            trainer=bundle.trainer,
            upload_endpoint="",
            dataloader=bundle.dataloader,
            files=bundle.files,
            env=bundle.env,
        )
        paths = Paths(
            attempt_dir=attempt,
            config_dir=attempt / "config",
            output_dir=attempt / "output",
            cache_dir=root / "caches",
        )
        trainer.launch(order, paths)
    return len(names)


class Found(msgspec.Struct):
    """`lost` and `lacking` hold pairs of an example and what it names."""

    read: int
    lost: list[tuple[str, str]]
    lacking: list[tuple[str, str]]
    imported: int = 0


def read_all(python: str) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        count = lay_out(python, Path(folder))
        answer = subprocess.run(
            [python, "-c", READ, folder],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": python_path(Path(python))},
        )
    ended = f"its loader ended with {answer.returncode}"  # below 0: the signal, 9 where memory ran out
    assert answer.returncode == 0, (ended, answer.stdout[-1000:], answer.stderr[-1000:])
    marked_line = next(line for line in answer.stdout.splitlines() if line.startswith("found:"))
    seen = msgspec.json.decode(marked_line.removeprefix("found:"), type=Found)
    seen.imported = count
    return seen


def main(python: str) -> int:
    seen = read_all(python)
    print(
        f"{seen.imported} examples imported, {seen.read} read by the trainer's own loader, {len(seen.lost)} files lost"
    )
    for name, value in seen.lacking:
        print(f"  its package lacks {value} ({name})")
    for name, value in seen.lost:
        print(f"  LOST {value} ({name})")
    return 1 if seen.lost or seen.read != seen.imported else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
