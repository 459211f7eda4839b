"""The command `simpletuner` beside a trainer that has one of the same name, whichever was installed last."""

import subprocess
import sys
from pathlib import Path

import pytest

TRAINER = """
import sys
def main():
    print("trainer", *sys.argv[1:])
    return 7
"""
FRONT = (
    "import sys; sys.argv[0] = 'simpletuner'; from simpletuner_fleet.cli.front import main; sys.exit(main())"
)


def site_with(folder: Path, *distributions: tuple[str, str]) -> Path:
    """Returns a folder as pip leaves it: each distribution with its entry point."""
    for name, entry_point in distributions:
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[console_scripts]\nsimpletuner = {entry_point}\n")
    (folder / "st_cli.py").write_text(TRAINER)
    return folder


def front(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); {FRONT}", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ours, trainer = ("simpletuner_fleet", "simpletuner_fleet.cli.front:main"), ("simpletuner", "st_cli:main")
    return site_with(tmp_path_factory.mktemp("site"), ours, trainer)


@pytest.mark.parametrize(
    "words",
    [
        ["train"],
        ["configure", "x"],
        ["server", "--port", "1"],
        ["worker"],
        ["jobs", "list"],
        ["--help"],
        [],
        ["unheard-of"],
    ],
)
def test_what_the_trainer_has_a_word_for_is_handed_over_whole(beside: Path, words: list[str]) -> None:
    done = front(beside, *words)
    assert done.stdout == " ".join(["trainer", *words]) + "\n"
    assert done.returncode == 7


def test_what_only_the_fleet_has_stays_here(beside: Path) -> None:
    assert front(beside, "version").stdout.startswith("simpletuner-fleet ")
    assert "simpletuner workers" in front(beside, "workers", "--help").stdout


def test_without_a_trainer_every_word_is_the_fleets(tmp_path: Path) -> None:
    alone = site_with(tmp_path, ("simpletuner_fleet", "simpletuner_fleet.cli.front:main"))
    assert "Run the orchestrator" in front(alone, "server", "--help").stdout
    assert "has no command or choice 'train'" in front(alone, "train").stderr


def test_called_by_its_own_name_it_speaks_of_itself_by_that_name() -> None:
    code = (
        "import sys; sys.argv[0] = '/x/simpletuner-fleet'; "
        "from simpletuner_fleet.cli.main import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "worker"], capture_output=True, text=True, timeout=60, check=False
    )
    assert "next: simpletuner-fleet worker --orchestrator-url" in done.stderr
