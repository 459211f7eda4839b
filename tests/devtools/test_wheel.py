"""What people install: all that the program needs, and nothing that only its authors need."""

import re
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def shipped(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def is_for_authors(path: str) -> bool:
    return path.endswith(".po") or path.startswith("simpletuner_fleet/sim/")


def test_it_ships_every_source_file_but_the_simulator_and_the_catalogues_sources(wheel: Path) -> None:
    sources = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert shipped(wheel) == {path for path in sources if not is_for_authors(path)}
    assert any(is_for_authors(path) for path in sources)


def test_nothing_that_it_ships_needs_the_simulator(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        users = [
            name
            for name in shipped(wheel)
            if name.endswith(".py")
            and re.search(
                r"^\s*(from|import) simpletuner_fleet\.sim\b", archive.read(name).decode(), re.MULTILINE
            )
        ]
    assert users == []


def test_its_metadata_say_what_it_is_and_on_what_it_runs(wheel: Path) -> None:
    facts = metadata(wheel)
    assert facts["Author"] == "SimpleTuner Fleet contributors"
    assert facts["License-Expression"] == "Apache-2.0"
    assert facts["Description-Content-Type"] == "text/markdown"
    assert "# SimpleTuner Fleet" in str(facts.get_payload())
    assert facts["Keywords"]
    assert "Programming Language :: Python :: 3.11" in facts.get_all("Classifier", [])
