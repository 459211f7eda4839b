"""Settings of the system that pages follow: less motion, own colours; and windows of any width."""

import re
from pathlib import Path

import pytest

from simpletuner_fleet.core.policy import MAX_NAME_CHARS
from simpletuner_fleet.http.edge.problem_words import LANGUAGE_COOKIE
from simpletuner_fleet.languages.choosing import PSEUDO
from simpletuner_fleet.web.frame.navigation import PLACES
from simpletuner_fleet.web.parts.jobs.columns import COLUMNS
from tests.web.browser import NARROWEST, PHONE, Language, resize, visit
from tests.web.console import Console, Pages
from tests.web.fleet import CONFIGS
from tests.web.page_table import page_paths
from tests.web.stage import Stage

LONG = "c" + "o" * (MAX_NAME_CHARS - 1)
JOB_NAME = "j" * 200
LABELLED_CELL = re.compile(r'<td\b[^>]*data-label="\{\{.*?\}\}"[^>]*>(.*?)</td>')
IN_ONE_PIECE = re.compile(r"<span>.*</span>")
WIDTHS = (360, 1280)
FOUR_K = (3840, 2160)
LOOKED_AT = ("/", "/jobs", "/fleet", "/admin/workers", "/train", "/configs")
MOVING = """
() => document.getAnimations().filter((one) => one.playState === "running").map((one) => one.effect.target.outerHTML)
"""
TRANSITIONS = """
() => [...document.querySelectorAll("*")]
  .filter((one) => getComputedStyle(one).transitionDuration.split(",").some((time) => parseFloat(time) > 0))
  .map((one) => one.outerHTML.slice(0, 120))
"""
EDGES = """
(one) => { const box = one.getBoundingClientRect(); return [box.left, box.right, one.scrollWidth - one.clientWidth] }
"""
MIDDLE = "(one) => { const box = one.getBoundingClientRect(); return (box.top + box.bottom) / 2 }"
BEYOND_ITS_CELL = """
(badges) => badges
  .filter((one) => one.getBoundingClientRect().right > one.closest("td").getBoundingClientRect().right + 1)
  .map((one) => one.textContent)
"""
ROOM_FOR_JOBS = """
(tables) => tables.map((one) => one.querySelector("td.lead").getBoundingClientRect().width)
"""
ROOM_FOR_AN_ID_PX = 150
OVERFLOW = "() => document.scrollingElement.scrollWidth - innerWidth"


def paths(console: Console) -> list[str]:
    return [*(path for path in LOOKED_AT if path in page_paths()), f"/jobs/{console.state.jobs['running']}"]


def test_what_stands_below_a_value_is_not_beside_it_on_a_phone() -> None:
    """There a cell is a row of its label and its value, and each piece of text would be a column of its own."""
    templates = Path(__file__).parents[2] / "src" / "simpletuner_fleet" / "web" / "templates"
    texts = {path.name: path.read_text("utf-8") for path in templates.rglob("*.html")}
    cells = [(name, cell) for name, text in texts.items() for cell in LABELLED_CELL.findall(text)]
    with_more = [(name, cell) for name, cell in cells if 'class="sub' in cell]
    assert with_more != []
    assert [(name, cell) for name, cell in with_more if not IN_ONE_PIECE.fullmatch(cell)] == []


async def test_nothing_moves_for_whoever_wants_less_motion(fleet: Console, page_as: Pages) -> None:
    page = await page_as(fleet, "admin")
    for path in paths(fleet):
        await visit(page, path)
        assert await page.evaluate(MOVING) == [], path
        assert await page.evaluate(TRANSITIONS) == [], path


async def test_colours_of_the_system_leave_every_status_in_words(fleet: Console, page_as: Pages) -> None:
    page = await page_as(fleet, "admin", forced_colors="active")
    for path in paths(fleet):
        await visit(page, path)
        assert await page.evaluate("() => matchMedia('(forced-colors: active)').matches")
        texts = await page.locator(".badge").all_text_contents()
        assert all(any(char.isalpha() for char in text) for text in texts), path


@pytest.mark.parametrize("size", [FOUR_K, (1000, 800), (720, 800)])
async def test_a_window_of_any_width_is_filled_and_never_scrolled_sideways(
    fleet: Console, page_as: Pages, size: tuple[int, int]
) -> None:
    page = await page_as(fleet, "admin", size=size)
    for path in paths(fleet):
        await visit(page, path)
        assert await page.evaluate(OVERFLOW) <= 0, path


async def test_a_list_of_jobs_has_room_for_their_names_and_ids_whatever_else_it_shows(
    fleet: Console, page_as: Pages
) -> None:
    page = await page_as(fleet, "admin")
    all_columns = "&".join(f"column={name}" for name in COLUMNS)
    for width in (1280, 1000, 720):
        await resize(page, (width, 800))
        for path in ("/jobs", f"/jobs?{all_columns}"):
            await visit(page, path)
            rooms = await page.locator("table.jobs").evaluate_all(ROOM_FOR_JOBS)
            assert rooms != []
            assert min(rooms) >= ROOM_FOR_AN_ID_PX, (path, width)
            assert await page.evaluate(OVERFLOW) <= 0, (path, width)


@pytest.mark.parametrize("path", ["/machines", "/admin/workers", "/notifications"])
async def test_on_a_phone_no_badge_is_cut_off_however_long_its_words_are(
    fleet: Console, page_as: Pages, path: str
) -> None:
    page = await page_as(fleet, "admin", size=PHONE)
    longest = {"name": LANGUAGE_COOKIE, "value": PSEUDO, "url": fleet.url}
    await page.context.add_cookies([longest])  # type: ignore[list-item]
    await visit(page, path)
    assert await page.locator("table.cards .badge").evaluate_all(BEYOND_ITS_CELL) == []


@pytest.mark.parametrize("language", ["en", "pt-BR", "hi"])
async def test_on_a_phone_every_place_is_in_the_bar_or_behind_more_and_none_is_cut_off(
    fleet: Console, page_as: Pages, language: Language
) -> None:
    page = await page_as(fleet, "admin", language=language, size=NARROWEST)
    await visit(page, "/fleet")
    await page.locator(".rail .more > summary").click()
    assert await page.locator(".rail a:visible").count() == len(PLACES)
    for place in await page.locator(".rail a:visible, .rail summary:visible, .head .tools > :visible").all():
        left, right, hidden = await place.evaluate(EDGES)
        assert left >= 0, await place.inner_text()
        assert right <= NARROWEST[0], await place.inner_text()
        assert hidden <= 1, await place.inner_text()
    heights = [await one.evaluate(MIDDLE) for one in await page.locator(".head .tools > :visible").all()]
    assert max(heights) - min(heights) < 10, heights


async def test_nothing_is_squeezed_or_beyond_the_edge_of_a_phone(fleet: Console, page_as: Pages) -> None:
    page = await page_as(fleet, "admin", language="ja", size=PHONE)
    await visit(page, "/login/terminal")
    await page.locator("summary").last.click()
    for button in await page.locator("[data-theme-choice]").all():
        box = await button.bounding_box()
        assert box
        assert 0 <= box["x"] <= PHONE[0] - box["width"]
    await visit(page, "/machines")
    for cell in await page.locator("td[data-label=段階]").all():
        box = await cell.bounding_box()
        assert box
        assert box["height"] < PHONE[1] / 5


async def test_on_a_phone_buttons_of_a_page_are_as_high_as_their_words(
    fleet: Console, page_as: Pages
) -> None:
    page = await page_as(fleet, "admin", language="en", size=PHONE)
    await visit(page, f"/jobs/{fleet.state.jobs['running']}")
    buttons = await page.locator(".head .actions .button").all()
    assert len(buttons) > 4
    for button in buttons:
        box = await button.bounding_box()
        assert box
        assert box["height"] < PHONE[1] / 15, await button.inner_text()


async def test_the_longest_names_leave_every_page_as_wide_as_the_window(stage: Stage, page_as: Pages) -> None:
    await stage.running.save_config(LONG, CONFIGS["sdxl-cats"])
    await stage.machine()
    work = await stage.begin(config_name=LONG, name=JOB_NAME)
    page = await page_as(stage, "admin")
    pages = (
        "/",
        "/configs",
        f"/configs/{LONG}",
        "/jobs",
        f"/jobs/{work.job_id}",
        "/train",
        "/fleet",
        "/admin/audit",
    )
    for path in pages:
        await visit(page, path)
        for width in WIDTHS:
            await page.set_viewport_size({"width": width, "height": 900})
            assert await page.evaluate(OVERFLOW) <= 0, (path, width)
