"""A command whose output or file cannot be written says what, why and what next."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simpletuner_fleet.cli.files import bundles
from simpletuner_fleet.cli.frame.errors import CliError, ExitCode
from simpletuner_fleet.cli.frame.unforeseen import unforeseen
from simpletuner_fleet.cli.nouns.backup import _scratch_beside
from simpletuner_fleet.store.backup.archive import BackupUnusable, unpack_archive
from tests.cli.conftest import FakeServer

NOWHERE = Path("/proc/nowhere")
CONFIG = {"name": "cats", "version": 1, "saved_by": "anna"}


def test_help_that_nobody_could_get_is_no_success() -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "simpletuner_fleet.cli.main", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: the output cannot be written\n  why:  No space left")
    assert "next:" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("where", ["a full disk", "a pipe that nobody reads"])
def test_what_is_done_is_done_though_nobody_can_be_told(server: FakeServer, home: Path, where: str) -> None:
    """A script that keeps messages in a file would submit a second time where the first is told as failed."""
    server.on("POST", "/api/queue/submit", {"job_id": "j_1", "status": "queued", "config": CONFIG})
    if where == "a full disk":
        messages = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, messages = os.pipe()
        os.close(reader)
    words = ("jobs", "submit", "cats", "-o", "name")
    for asked, code, out in [(words, ExitCode.OK, "j_1\n"), (("jobs", "get", "j_1"), ExitCode.NOT_FOUND, "")]:
        ended = subprocess.run(
            [sys.executable, "-m", "simpletuner_fleet.cli.main", *asked, "--url", server.url],
            stdout=subprocess.PIPE,
            stderr=messages,
            text=True,
            check=False,
        )
        assert (ended.returncode, ended.stdout) == (code, out)
    os.close(messages)


def test_a_full_disk_behind_the_output_is_told_as_such() -> None:
    assert unforeseen(OSError(28, "No space left on device"), {}).code == "E_OUTPUT"


def test_an_export_to_where_nothing_can_be_is_told_with_the_folder() -> None:
    with pytest.raises(CliError) as refused:
        bundles.save({"settings": {}}, NOWHERE, force=False)
    trouble = refused.value.trouble
    assert (trouble.what, trouble.why) == (
        f"nothing can be written to {NOWHERE}",
        "No such file or directory",
    )
    assert trouble.next


def test_a_backup_to_where_nothing_can_be_is_told_with_the_folder() -> None:
    with pytest.raises(CliError) as refused, _scratch_beside(NOWHERE):
        pass
    trouble = refused.value.trouble
    assert (trouble.what, trouble.why) == ("nothing can be written to /proc", "No such file or directory")
    assert trouble.next


def test_a_backup_that_is_not_there_or_is_a_folder_is_told_as_such(tmp_path: Path) -> None:
    for source, said in [
        (tmp_path / "none", f"There is no file {tmp_path / 'none'}."),
        (tmp_path, f"{tmp_path} is a folder."),
    ]:
        with pytest.raises(BackupUnusable) as refused:
            unpack_archive(source, tmp_path)
        assert refused.value.detail == said
        assert refused.value.next
