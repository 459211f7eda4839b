"""Names as long as they may be: no page is scrolled sideways for them, on a desk or on a phone."""

from simpletuner_fleet.core.policy import MAX_NAME_CHARS
from tests.web.browser import visit
from tests.web.console import Pages
from tests.web.fleet import CONFIGS
from tests.web.stage import Stage

LONG = "c" + "o" * (MAX_NAME_CHARS - 1)
JOB_NAME = "j" * 200
WIDTHS = (360, 1280)


async def test_the_longest_names_leave_every_page_as_wide_as_the_window(stage: Stage, page_as: Pages) -> None:
    await stage.running.save_config(LONG, CONFIGS["sdxl-cats"])
    await stage.machine()
    work = await stage.begin(config_name=LONG, name=JOB_NAME)
    page = await page_as(stage, "admin")
    paths = (
        "/",
        "/configs",
        f"/configs/{LONG}",
        "/jobs",
        f"/jobs/{work.job_id}",
        "/train",
        "/fleet",
        "/admin/audit",
    )
    for path in paths:
        await visit(page, path)
        for width in WIDTHS:
            await page.set_viewport_size({"width": width, "height": 900})
            wide = await page.evaluate("document.scrollingElement.scrollWidth")
            assert wide <= width, (path, wide)
