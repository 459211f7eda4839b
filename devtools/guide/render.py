"""One page of Markdown as the HTML that stands in the console's frame. It holds no script, style or raw markup."""

import posixpath
from collections.abc import Sequence
from html import escape
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from msgspec import Struct


class Heading(Struct, frozen=True):
    level: int
    anchor: str
    title: str


class Rendered(Struct, frozen=True):
    html: str
    headings: list[Heading]
    codes: str
    """What stands in code marks in the text, each once."""


def render(markdown: str, anchors: Sequence[str], place: str, known: dict[str, str]) -> Rendered:
    """`anchors` has a name for each heading, the title first; `known` turns a page's place into its slug."""
    maker = _maker()
    tokens = maker.parse(markdown)
    headings = _name_headings(tokens, anchors)
    for token in tokens:
        for child in token.children or ():
            if child.type == "link_open":
                _lead_within_the_site(child, place, known)
    body = tokens[_after_title(tokens) :]
    inline = (child for token in body for child in token.children or ())
    codes = " ".join(dict.fromkeys(child.content for child in inline if child.type == "code_inline"))
    return Rendered(maker.renderer.render(body, maker.options, {}), headings, codes)


def _maker() -> MarkdownIt:
    maker = MarkdownIt("commonmark", {"html": False}).enable("table")
    maker.add_render_rule("fence", _code_block)
    maker.add_render_rule("table_open", _table_open)
    maker.add_render_rule("table_close", _table_close)
    return maker


def _after_title(tokens: Sequence[Token]) -> int:
    return next(index for index, token in enumerate(tokens) if token.type == "heading_close") + 1


def _name_headings(tokens: Sequence[Token], anchors: Sequence[str]) -> list[Heading]:
    opened = [index for index, token in enumerate(tokens) if token.type == "heading_open"]
    headings = []
    for index, anchor in zip(opened, anchors, strict=True):
        tokens[index].attrSet("id", anchor)
        headings.append(Heading(int(tokens[index].tag[1]), anchor, _plain(tokens[index + 1])))
    return headings[1:]


def _plain(inline: Token) -> str:
    return "".join(child.content for child in inline.children or ())


def _lead_within_the_site(link: Token, place: str, known: dict[str, str]) -> None:
    target = str(link.attrs["href"])
    if target.startswith("https://"):
        return
    path, _, anchor = target.partition("#")
    page = posixpath.normpath(posixpath.join(posixpath.dirname(place), path)) if path else place
    link.attrSet("href", f"/guide/{known[page]}" + (f"#{anchor}" if anchor else ""))


def _code_block(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    return f'<div class="code"><pre tabindex="0">{escape(tokens[index].content.rstrip(), quote=False)}</pre></div>\n'


def _table_open(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    return '<div class="wide" tabindex="0"><table>\n'


def _table_close(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    return "</table></div>\n"
