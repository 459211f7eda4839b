"""The client's copy of the route table is the route table's."""

import sys
from pathlib import Path

import pytest

from devtools import client_table
from devtools.client_table import drawings, main
from simpletuner_fleet.client.table import calls
from simpletuner_fleet.http.application import ROUTES


def test_the_copy_is_as_the_table_is_now(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["client_table", "--check"])
    assert main() == 0, "run ./dev client"
    monkeypatch.setattr(client_table, "FOLDER", tmp_path / "src" / "table")
    (tmp_path / "src").mkdir()
    assert main() == 1
    assert "./dev client" in capsys.readouterr().err


def test_every_call_is_a_row_and_knows_what_it_may_be_given() -> None:
    rows = {(row.method, row.path): row for row in ROUTES}
    submit = rows[calls.SUBMIT.method, calls.SUBMIT.path]
    assert calls.SUBMIT.body == tuple(submit.body.__struct_fields__)
    assert calls.SUBMIT.answer.__struct_fields__ == submit.answer.__struct_fields__
    assert "class SubmitOptions(TypedDict" in drawings()["requests.py"]
