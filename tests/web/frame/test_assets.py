"""What the pages are made of: served by ourselves, of the right type, kept by browsers as long as it is true."""

import httpx2
import pytest

from simpletuner_fleet.web.frame.assets import ASSETS
from tests.web.console import Console, Pages

TYPES = {
    "vendor/htmx.min.js": "text/javascript",
    "vendor/uplot.js": "text/javascript",
    "vendor/uplot.css": "text/css",
    "vendor/anser.js": "text/javascript",
    "vendor/icons.svg": "image/svg+xml",
}


@pytest.fixture
def http(fleet: Console) -> httpx2.Client:
    return fleet.world.client


@pytest.mark.parametrize("path", TYPES)
def test_a_file_has_its_type_and_is_kept_for_ever(fleet: Console, http: httpx2.Client, path: str) -> None:
    answer = http.get(fleet.url + ASSETS.url(path))
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(TYPES[path])
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.content == ASSETS.get(path).body


def test_a_file_of_another_release_is_not_kept(fleet: Console, http: httpx2.Client) -> None:
    answer = http.get(f"{fleet.url}/assets/000000000000/vendor/htmx.min.js")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", ["vendor/nothing.js", "../page.py", "%2e%2e/page.py", "vendor"])
def test_nothing_else_is_given_out(fleet: Console, http: httpx2.Client, path: str) -> None:
    assert http.get(f"{fleet.url}/assets/{ASSETS.tree}/{path}").status_code == 404


async def test_every_script_of_others_runs_under_our_policy(fleet: Console, page_as: Pages) -> None:
    page = await page_as(fleet, "nobody")
    await page.goto("/login")
    results = await page.evaluate(
        """async ([charts, colours]) => {
          const { default: uPlot } = await import(charts);
          const { default: Anser } = await import(colours);
          const place = document.body.appendChild(document.createElement("div"));
          const chart = new uPlot(
            { width: 300, height: 100, series: [{}, { stroke: "red" }] }, [[1, 2, 3], [3, null, 2]], place,
          );
          return {
            chart: place.querySelectorAll("canvas").length,
            colours: Anser.ansiToJson("\\u001b[31mred\\u001b[0m", { use_classes: true })[1].fg,
            htmx: htmx.version,
          };
        }""",
        [ASSETS.url("vendor/uplot.js"), ASSETS.url("vendor/anser.js")],
    )
    assert results == {"chart": 1, "colours": "ansi-red", "htmx": "4.0.0"}


async def test_an_icon_of_the_sprite_is_drawn(fleet: Console, page_as: Pages) -> None:
    page = await page_as(fleet, "nobody")
    await page.goto("/login")
    await page.evaluate(
        """(url) => {
          document.body.insertAdjacentHTML("beforeend", `<svg id="one" width="24" height="24"><use href="${url}"/></svg>`);
        }""",
        f"{ASSETS.url('vendor/icons.svg')}#play",
    )
    await page.wait_for_function("document.getElementById('one').getBBox().width > 10")
