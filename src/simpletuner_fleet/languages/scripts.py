"""Translates what the pages' scripts say. `./dev words` gathers their sentences into `scripts.json`."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from simpletuner_fleet.languages.words import Words

SENTENCES = Path(__file__).parent / "scripts.json"


@cache
def sentences() -> tuple[tuple[str, ...], ...]:
    """Returns each sentence by itself, or a singular with its plural."""
    return tuple(tuple(entry) for entry in json.loads(SENTENCES.read_text("utf-8")))


def messages_of(words: Words) -> dict[str, Any]:
    return {
        "lang": words.lang,
        "messages": {entry[0]: words.gettext(entry[0]) for entry in sentences() if len(entry) == 1},
        "plurals": {entry[0]: words.forms(*entry) for entry in sentences() if len(entry) == 2},
    }
