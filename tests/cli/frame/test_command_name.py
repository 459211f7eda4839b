"""Commands in messages are written as the reader has to type them."""

import sys

import pytest

from simpletuner_fleet.cli.commands.build import command_words
from simpletuner_fleet.cli.frame.command_name import as_called


@pytest.mark.parametrize("word", sorted(command_words()))
def test_every_command_is_named_as_this_program_was_called(
    word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/simpletuner-fleet"])
    assert as_called(f"next: simpletuner {word} …") == f"next: simpletuner-fleet {word} …"
