"""What the documents tell people to type is what the programs understand, and every link leads somewhere."""

import re
import shlex
from pathlib import Path

import pytest

from simpletuner_fleet.cli.commands import build_parser

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
BLOCK = re.compile(r"```bash\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
DEV_COMMANDS = {"setup", "demo", "test", "check", "sim", "mutants", "chaos", "bench", "fmt", "clean", "lock"}


def commands() -> list[tuple[str, list[str]]]:
    found = []
    for document in DOCUMENTS:
        for block in BLOCK.findall(document.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words:
                    found.append((document.name, words))
    return found


@pytest.mark.parametrize(
    ("document", "words"), [pytest.param(*item, id=" ".join(item[1])[:60]) for item in commands()]
)
def test_every_command_in_a_document_is_understood(document: str, words: list[str]) -> None:
    program, *arguments = words
    if program == "simpletuner":
        build_parser().parse_args(arguments)
    elif program == "./dev":
        assert arguments[0] in DEV_COMMANDS
    else:
        assert program in {"pip", "curl", "export", "git", "bash", "cd", "systemctl"}, f"{document}: {words}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_in_a_document_leads_somewhere(document: Path) -> None:
    targets = [target for target in LINK.findall(document.read_text()) if "://" not in target]
    assert [target for target in targets if not (document.parent / target).exists()] == []


def test_there_are_commands_to_check() -> None:
    assert len([words for _, words in commands() if words[0] == "simpletuner"]) > 15
