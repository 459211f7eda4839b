"""What a backup refuses is told in the reader's language; the code, the path and the flags stay as they are."""

from pathlib import Path

import pytest

from simpletuner_fleet.cli.frame.errors import ExitCode
from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("lang", "why", "then"),
    [
        ("en", "There is no file {file}.", "Check the path."),
        ("pt-BR", "Não existe o arquivo {file}.", "Verifique o caminho."),
        ("hi", "{file} नाम की कोई फ़ाइल नहीं है।", "Path जाँचें।"),
        ("zh", "没有文件 {file}。", "请检查路径。"),
        ("ja", "ファイル {file} がありません。", "パスを確認してください。"),
    ],
)
def test_a_backup_that_is_not_there_is_told_in_each_language(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lang: str, why: str, then: str
) -> None:
    monkeypatch.setenv("SIMPLETUNER_LANG", lang)
    file = tmp_path / "gone.tar.gz"
    result = run("backup", "verify", str(file))
    assert result.code == ExitCode.FAILED
    assert "backup_unusable" in result.err
    said = " ".join(result.err.split())
    assert why.format(file=file) in said
    assert then in said


def test_what_a_class_of_errors_says_by_itself_is_translated_too(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SIMPLETUNER_LANG", "pt-BR")
    file = tmp_path / "torn.tar.gz"
    file.write_bytes(b"torn")
    result = run("backup", "verify", str(file))
    assert result.code == ExitCode.FAILED
    assert "não pode ser lido por inteiro" in result.err
    assert "Use another backup" not in result.err
