"""Jinja2 templates in the language of the request: `{% trans %}`, `_()`, `ngettext()`; see `spoken_in`."""

from typing import Any

from simpletuner_fleet.languages import current

EXTENSION = "jinja2.ext.i18n"


def install(environment: Any) -> None:
    """Gives a Jinja2 environment its words. Blanks are filled in and escaped by Jinja2 itself."""
    environment.add_extension(EXTENSION)
    environment.install_gettext_callables(
        lambda message: current().gettext(message),
        lambda one, many, n: current().ngettext(one, many, n),
        newstyle=True,
        pgettext=lambda context, message: current().pgettext(context, message),
        npgettext=lambda context, one, many, n: current().npgettext(context, one, many, n),
    )
