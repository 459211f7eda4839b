"""What the documents tell people to type is what the programs understand, and every link leads somewhere."""

import re
import shlex
import subprocess
from functools import cache
from pathlib import Path

import pytest

from simpletuner_fleet.cli.commands import build_parser

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
BLOCK = re.compile(r"```bash\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
DEV_COMMANDS = set(
    re.findall(r"^  ([a-z-]+) ", subprocess.check_output([ROOT / "dev"], text=True), re.MULTILINE)
)


whole_parser = cache(build_parser)
"""Of all commands, for all tests: to build it takes a hundred times longer than to parse one of them."""


def commands() -> list[tuple[str, list[str]]]:
    """Those of the guide are run, in test_guide_commands.py."""
    commands = []
    for document in DOCUMENTS:
        if ROOT / "docs" / "guide" in document.parents:
            continue
        for block in BLOCK.findall(document.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words:
                    commands.append((document.name, words))
    return commands


@pytest.mark.parametrize(
    ("document", "words"), [pytest.param(*item, id=" ".join(item[1])[:60]) for item in commands()]
)
def test_every_command_in_a_document_is_understood(document: str, words: list[str]) -> None:
    program, *arguments = words
    if program == "simpletuner":
        whole_parser().parse_args(arguments)
    elif program == "./dev":
        assert arguments[0] in DEV_COMMANDS
    else:
        assert program in {"pip", "curl", "export", "git", "bash", "cd", "systemctl"}, f"{document}: {words}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_in_a_document_leads_somewhere(document: Path) -> None:
    targets = [target for target in LINK.findall(document.read_text()) if "://" not in target]
    assert [target for target in targets if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_of_ours_that_a_document_names_exists(document: Path) -> None:
    named = set(re.findall(r"\./dev ([a-z-]+)", document.read_text()))
    assert named <= DEV_COMMANDS


def test_every_decision_is_listed_with_its_number_and_title() -> None:
    folder = ROOT / "docs" / "adr"
    headings = {path.name: path.read_text().partition("\n")[0] for path in folder.glob("[0-9]*.md")}
    listed = re.findall(r"^(\d+)\. \[(.+)\]\((.+)\)$", (folder / "README.md").read_text(), re.MULTILINE)
    assert {name: f"# {number}. {title}" for number, title, name in listed} == headings
    assert sorted(int(name[:4]) for name in headings) == list(range(1, len(headings) + 1))


def test_every_document_is_reached_from_the_front_page() -> None:
    reached, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        document = waiting.pop()
        reached.add(document)
        targets = [(document.parent / target).resolve() for target in LINK.findall(document.read_text())]
        waiting += [path for path in targets if path.suffix == ".md" and path not in reached]
    assert [str(path.relative_to(ROOT)) for path in DOCUMENTS if path not in reached] == []


def test_there_are_commands_to_check() -> None:
    assert len([words for _, words in commands() if words[0] == "simpletuner"]) > 15
