from pathlib import Path

import pytest

from devtools.languages.sentences import detail_sentences, heading_sentences

ERRORS = 'class FleetError(Exception):\n    """Something went wrong."""\n'


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "folder", ["core", "http/api", "orchestrator", "engine", "storage/uploads", "queries"]
)
def test_what_errors_say_is_gathered_from_every_folder_however_deep(tmp_path: Path, folder: str) -> None:
    written(tmp_path / "core" / "errors.py", ERRORS)
    written(tmp_path / folder / "some.py", 'raise FleetError(f"Nothing is called {name}.")\n')
    assert detail_sentences(tmp_path) == ["Nothing is called %(name)s."]


@pytest.mark.parametrize("folder", ["cli", "cli/nouns"])
def test_headings_of_tables_are_gathered_from_every_folder_of_the_command_line(
    tmp_path: Path, folder: str
) -> None:
    written(tmp_path / folder / "jobs.py", 'COLUMNS = (Column("WAITS FOR", 3), field("state"))\n')
    assert heading_sentences(tmp_path) == ["STATE", "WAITS FOR"]
