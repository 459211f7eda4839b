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
