"""Lets Jinja2 templates use the language of the request: `{% trans %}`, `_()`, `ngettext()`; see `spoken_in`."""

from typing import Any

from simpletuner_fleet.languages import current

EXTENSION = "jinja2.ext.i18n"


def install(environment: Any) -> None:
    """Gives a Jinja2 environment our translations. Jinja2 itself fills in and escapes the placeholders."""
    environment.add_extension(EXTENSION)
    environment.install_gettext_callables(
        lambda message: current().gettext(message),
        lambda one, many, n: current().ngettext(one, many, n),
        newstyle=True,
        pgettext=lambda context, message: current().pgettext(context, message),
        npgettext=lambda context, one, many, n: current().npgettext(context, one, many, n),
    )
    environment.globals["gettext"] = environment.globals["_"] = _said()
    environment.globals["ngettext"] = _counted()


def _said() -> Any:
    """Returns Jinja2's own `gettext` without its lookup by name and needless formatting, hundreds of times a page."""
    from jinja2 import pass_eval_context  # a worker has no templates, and no Jinja2
    from markupsafe import Markup

    @pass_eval_context
    def said(context: Any, message: str, /, **blanks: Any) -> str:
        text = current().gettext(message)
        if context.autoescape:
            text = Markup(text)  # our own words are no user's
        return text % blanks if "%" in text else text

    return said


def _counted() -> Any:
    """Returns Jinja2's own `ngettext`, except that numbers are written as the language does."""
    from jinja2 import pass_context  # a worker has no templates, and no Jinja2
    from markupsafe import Markup

    @pass_context
    def counted(context: Any, one: str, many: str, count: int, /, **blanks: Any) -> str:
        words = current()
        shown = {name: words.number(value) if type(value) is int else value for name, value in blanks.items()}
        text = words.ngettext(one, many, count)
        return (Markup(text) if context.eval_ctx.autoescape else text) % shown

    return counted
