"""What a backup refuses is told in the reader's language; the code, the path and the flags stay as they are."""

import asyncio
from pathlib import Path

import pytest

from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.store import SqliteStore
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


def test_the_storage_of_several_servers_is_refused_for_sqlite_rather_than_ignored(
    run: Run, tmp_path: Path
) -> None:
    words = ("--data-dir", str(tmp_path), "--storage-url", "s3://fleet")
    result = run("backup", "restore", str(tmp_path / "backup"), *words)
    assert result.code == ExitCode.USAGE
    assert "--storage-url cannot be used this way" in result.err
    assert "--database-url postgresql://… must be given" in " ".join(result.err.split())


@pytest.mark.parametrize("url", ["mysql://host/fleet", "sqlite://fleet.db", "sqlite:///:memory:"])
@pytest.mark.parametrize("verb", ["create", "restore"])
def test_a_url_of_no_database_is_refused_and_nothing_is_made_of_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: str, url: str
) -> None:
    asyncio.run(SqliteStore(tmp_path / "data" / "fleet.db").close())
    backup = tmp_path / "backup.tar.gz"
    assert run("backup", "create", str(backup), "--data-dir", str(tmp_path / "data")).code == ExitCode.OK
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    target = backup if verb == "restore" else tmp_path / "other.tar.gz"
    result = run("backup", verb, str(target), "--data-dir", str(tmp_path / "data"), "--database-url", url)
    assert result.code == ExitCode.FAILED
    assert "store_refused" in result.err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_database_server_that_is_away_is_named(run: Run, tmp_path: Path) -> None:
    words = ("--data-dir", str(tmp_path), "--database-url", "postgresql://127.0.0.1:1/fleet")
    result = run("backup", "create", str(tmp_path / "backup.tar.gz"), *words)
    assert result.code == ExitCode.FAILED
    assert "store_refused" in result.err
    assert "PostgreSQL cannot be used" in result.err


def made_database(tmp_path: Path) -> Path:
    asyncio.run(SqliteStore(tmp_path / "data" / "fleet.db").close())
    return tmp_path / "data" / "fleet.db"


@pytest.mark.parametrize("link", [False, True], ids=["itself", "by a link"])
def test_a_backup_is_never_written_over_the_database(run: Run, tmp_path: Path, link: bool) -> None:
    database = made_database(tmp_path)
    before = database.read_bytes()
    target = tmp_path / "link" if link else database
    if link:
        target.symlink_to(database)
    for words in ((str(target),), (str(tmp_path / "backup"), "--keys", str(target))):
        result = run("backup", "create", *words, "--data-dir", str(tmp_path / "data"))
        assert result.code == ExitCode.USAGE, words
        assert database.read_bytes() == before


def test_the_keys_are_never_written_over_a_key(run: Run, tmp_path: Path) -> None:
    key = made_database(tmp_path).with_name("secrets.key")
    key.write_text("secret")
    words = ("--keys", str(key), "--data-dir", str(tmp_path / "data"))
    assert run("backup", "create", str(tmp_path / "backup"), *words).code == ExitCode.USAGE
    assert key.read_text() == "secret"


def test_the_keys_are_never_written_over_the_backup(run: Run, tmp_path: Path) -> None:
    made_database(tmp_path)
    backup = str(tmp_path / "backup.tar.gz")
    result = run("backup", "create", backup, "--keys", backup, "--data-dir", str(tmp_path / "data"))
    assert result.code == ExitCode.USAGE
    assert "--keys cannot be used this way" in result.err
    assert not Path(backup).exists()


def test_what_a_backup_holds_is_printed_for_programs(run: Run, tmp_path: Path) -> None:
    made_database(tmp_path)
    backup = str(tmp_path / "backup.tar.gz")
    created = run("backup", "create", backup, "--data-dir", str(tmp_path / "data"), "--json")
    verified = run("backup", "verify", backup, "--json")
    assert (created.json["file"], created.json["database"]) == (backup, "sqlite")
    assert verified.json == created.json
    assert run("backup", "verify", backup, "-o", "name").out == f"{backup}\n"
    assert run("backup", "verify", backup).out == ""
