"""Scripts name one another by paths that lead somewhere, and each is asked for by a page or by another script."""

import posixpath
import re
from pathlib import Path

from simpletuner_fleet.web.frame.assets import ASSETS

TEMPLATES = Path(__file__).parents[3] / "src" / "simpletuner_fleet" / "web" / "templates"
IMPORT = re.compile(r'(?:from|import) ?"(\.[^"]+)"')
ASSET = re.compile(r"asset\('(js/[^']+)'\)")


def imports() -> dict[str, set[str]]:
    """Returns which files each script imports, as paths below `static`."""
    return {
        path: {
            posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
            for target in IMPORT.findall(ASSETS.get(path).body.decode())
        }
        for path in ASSETS.paths()
        if path.startswith("js/")
    }


def asked_for_by_pages() -> set[str]:
    return {
        path for template in TEMPLATES.rglob("*.html") for path in ASSET.findall(template.read_text("utf-8"))
    }


def test_every_script_that_is_named_is_there() -> None:
    named = asked_for_by_pages().union(*imports().values())
    assert named - set(ASSETS.paths()) == set()


def test_no_script_is_left_over() -> None:
    assert set(imports()) - asked_for_by_pages().union(*imports().values()) == set()


ASKS = re.compile(r"\bfetch\(")
ASK_FOR_WHOEVER_IS_LOGGED_IN = {"js/frame/live.js", "js/common/refusals.js"}
"""The first looks whether that is still the user of the page; the second is told why a stream was refused, and no more."""


def test_every_script_that_asks_for_something_says_whose_page_it_is() -> None:
    asking = {path for path in imports() if ASKS.search(ASSETS.get(path).body.decode())}
    saying = {path for path, targets in imports().items() if "js/common/caller.js" in targets}
    assert "js/common/actions.js" in asking
    assert asking - saying == ASK_FOR_WHOEVER_IS_LOGGED_IN - saying
