"""What stands on a page can be used as it is: a link filters by what its page knows, a command is one that there is."""

import re
import shlex
from collections.abc import Iterator
from html import unescape
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest

from simpletuner_fleet.cli.commands import build_parser
from simpletuner_fleet.http.edge.routes import Route
from simpletuner_fleet.web import routes
from tests.web.console import Console
from tests.web.page_table import PAGES

LINKS = re.compile(r'<a\b[^>]*\bhref="([^"]+)"')
COMMANDS = re.compile(r'<div class="copy"><pre[^>]*>([^<]+)</pre>')
PROGRAMS = ("simpletuner ", "simpletuner-fleet ")
OF_THE_GUIDE = "/guide"


@pytest.fixture(scope="module")
def texts(fleet: Console) -> dict[str, str]:
    """Every page of the console by its address."""
    rows = [row for row in PAGES if not row.path.startswith(OF_THE_GUIDE)]
    pages: dict[str, str] = {}
    with httpx2.Client(base_url=fleet.url, cookies=fleet.cookies("admin"), trust_env=False) as client:
        for row in rows:
            for turn in range(row.variants):
                address = row.url(fleet.state, turn)
                pages[address] = client.get(address).text
    return pages


def route_of(path: str) -> Route | None:
    """The first row whose path this is."""
    for row in routes.ROUTES:
        if row.method == "GET" and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", row.path), path):
            return row
    return None


def links(texts: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yields each link with a query within the console, with the page it stands on."""
    for address, text in texts.items():
        for written in LINKS.findall(text):
            link = unescape(written)
            if link.startswith("?"):
                link = address.partition("?")[0] + link
            if link.startswith("/") and "?" in link:
                yield address, link


def test_every_filter_in_a_link_is_one_that_its_page_knows(texts: dict[str, str]) -> None:
    checked, unknown = 0, []
    for address, link in links(texts):
        parts = urlsplit(link)
        if (row := route_of(parts.path)) is None:
            continue
        known = getattr(row.query, "__struct_fields__", ())
        wrong = {name for name, _ in parse_qsl(parts.query, keep_blank_values=True)} - set(known)
        checked += 1
        if wrong:
            unknown.append(f"{address}: {link}: {', '.join(sorted(wrong))}")
    assert checked > 100
    assert sorted(set(unknown)) == []


def test_every_command_to_copy_is_one_that_the_program_takes(texts: dict[str, str]) -> None:
    commands = {unescape(written).strip() for text in texts.values() for written in COMMANDS.findall(text)}
    ours = sorted(command for command in commands if command.startswith(PROGRAMS))
    assert ours != []
    for command in ours:
        try:
            build_parser().parse_args(shlex.split(command)[1:])
        except SystemExit:
            pytest.fail(f"the program does not take what a page shows: {command}")
