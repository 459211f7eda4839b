"""Sets up the templates. Everything is escaped, and an unknown name is an error, not an empty string."""

from functools import cache
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from simpletuner_fleet.languages import for_scripts
from simpletuner_fleet.languages.templates import install
from simpletuner_fleet.web.frame import formatting
from simpletuner_fleet.web.frame.assets import ASSETS


@cache
def environment() -> Environment:
    templates = Environment(
        loader=PackageLoader("simpletuner_fleet.web", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    install(templates)
    templates.globals.update(asset=ASSETS.url, script_words=script_words, **formatting.GLOBALS)
    templates.filters.update(formatting.FILTERS)
    return templates


@cache
def script_words(language: str) -> Markup:
    return data_block(for_scripts(language))


def data_block(value: Any) -> Markup:
    """Returns JSON for a script element that is not executed; the JSON cannot end that element."""
    return Markup(msgspec.json.encode(value).decode().replace("<", "\\u003c"))
