"""Where the worker's token comes from, and what is said where there is none."""

from pathlib import Path

import pytest

from simpletuner_fleet.agent.token_source import TokenSource
from simpletuner_fleet.core.worker_errors import TokenFileError


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("missing", "cannot be read: No such file or directory."),
        (".", "cannot be read: Is a directory."),
        ("empty", "is empty."),
    ],
)
def test_a_file_without_a_token_is_told_with_its_name_and_the_reason(
    tmp_path: Path, name: str, why: str
) -> None:
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(TokenFileError) as refused:
        TokenSource(None, tmp_path / name)
    assert refused.value.detail == f"The token file {tmp_path / name} {why}"
