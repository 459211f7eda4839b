"""The plug-in that the document shows is installed as it says there, and trains."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "trainers.md"
RSCRIPT = '#!/bin/sh\necho "ran $1"\ncp "$2" seen.json\necho "$SIMPLETUNER_JOB_ID" > job\n'
JOB = """
import asyncio, json, os, sys
from pathlib import Path
from msgspec.structs import replace
from simpletuner_fleet.agent.guard.runner import Runner
from simpletuner_fleet.agent.guard.shim_client import Order
from simpletuner_fleet.agent.state_dir import StateDir
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.contract import Paths, TrainerError
from simpletuner_fleet.trainers.registry import Registry
from tests.agent.shim_fixtures import start

async def main(folder):
    registry = Registry.load(environment={"PATH": os.environ["PATH"]})
    offer = JobSubmit(
        job_id="j_1", attempt=1, attempt_id="a_1", epoch=1, config_name="c", trainer="rscript",
        config={"script": "train.R", "steps": 3}, files={"train.R": "print(1)"}, upload_endpoint="http://o",
    )
    with StateDir.open(folder) as state:
        attempt = state.create_attempt(offer.attempt_id)
        attempt.save_order(offer)
        paths = Paths(attempt_dir=attempt.path, config_dir=attempt.config_dir, output_dir=attempt.output_dir)
        try:
            registry.get("rscript").launch(replace(offer, files={}), paths)
            refused = ""
        except TrainerError as error:
            refused = error.detail
        launch = registry.get(offer.trainer).launch(offer, paths)
        order = Order(
            attempt_id=offer.attempt_id, attempt_dir=str(attempt.path), argv=launch.argv, env=launch.env,
            cwd=launch.cwd, output=str(attempt.output_log),
        )
        async with Runner() as runner:
            running = await start(runner, order)
            ended = await running.wait()
            await running.release()
        print(json.dumps({
            "available": registry.available(), "exit_code": ended.exit_code, "last_lines": ended.last_lines,
            "refused": refused,
            "seen": json.loads((paths.output_dir / "seen.json").read_text()),
            "job": (paths.output_dir / "job").read_text(),
        }))

asyncio.run(main(Path(sys.argv[1])))
"""


def block(language: str) -> str:
    blocks = re.findall(rf"```{language}\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(blocks) == 1, f"the document has one example in {language}"
    return str(blocks[0])


def install(folder: Path) -> None:
    """As an installer leaves it: the module, and beside it the metadata with its entry points."""
    declared = tomllib.loads(block("toml"))["project"]["entry-points"]
    metadata = folder / "r_trainer-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / "r_trainer.py").write_text(block("python"))
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: r-trainer\nVersion: 1.0\n")
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in points.items())
        for group, points in declared.items()
    ]
    (metadata / "entry_points.txt").write_text("\n".join(groups))


def test_the_documents_trainer_is_found_by_its_entry_point_and_runs_a_job(tmp_path: Path) -> None:
    install(tmp_path / "installed")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "Rscript").write_text(RSCRIPT)
    (programs / "Rscript").chmod(0o755)
    ran = subprocess.run(
        [sys.executable, "-c", JOB, str(tmp_path / "worker")],
        env={"PATH": f"{programs}:/usr/bin:/bin", "PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    assert "rscript" in result["available"]
    assert result["exit_code"] == 0
    assert result["last_lines"].startswith("ran ")
    assert result["last_lines"].endswith("/train.R")
    assert result["seen"] == {"script": "train.R", "steps": 3}
    assert result["job"] == "j_1\n"
    assert result["refused"] == "settings.script must name one of the config's files."


def test_the_example_is_short() -> None:
    assert len(block("python").splitlines()) <= 36
