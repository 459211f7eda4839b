"""Settings of the system that pages follow: less motion, own colours; and windows of any width."""

import pytest

from tests.web.browser import visit
from tests.web.console import Console, Pages
from tests.web.page_table import page_paths

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
OVERFLOW = "() => document.scrollingElement.scrollWidth - innerWidth"


def paths(console: Console) -> list[str]:
    return [*(path for path in LOOKED_AT if path in page_paths()), f"/jobs/{console.state.jobs['running']}"]


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


@pytest.mark.parametrize("size", [FOUR_K, (1920, 1080), (720, 800)])
async def test_a_window_of_any_width_is_filled_and_never_scrolled_sideways(
    fleet: Console, page_as: Pages, size: tuple[int, int]
) -> None:
    page = await page_as(fleet, "admin", size=size)
    for path in paths(fleet):
        await visit(page, path)
        assert await page.evaluate(OVERFLOW) <= 0, path
