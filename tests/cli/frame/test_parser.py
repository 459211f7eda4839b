"""What argparse says is read in English and translated by us, whatever else is installed on the machine."""

import gettext
from pathlib import Path

import pytest
from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo

from tests.cli.conftest import Run


@pytest.fixture
def foreign_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lays one where every program finds it that has named none of its own."""
    folder = tmp_path / "pt" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    catalogue = Catalog()
    catalogue.add("expected one argument", "falta um argumento")
    with (folder / "messages.mo").open("wb") as file:
        write_mo(file, catalogue)
    monkeypatch.setattr(gettext, "_localedirs", {gettext.textdomain(): str(tmp_path)})
    monkeypatch.setenv("LANGUAGE", "pt")
    assert gettext.gettext("expected one argument") == "falta um argumento"


@pytest.mark.usefixtures("foreign_catalogue")
def test_a_catalogue_of_somebody_else_changes_no_sentence_of_ours(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMPLETUNER_LANG", "en")
    assert "why:  it needs a value" in run("jobs", "list", "--url").err
