"""A name that people write is sent by a browser in the letters that we expect."""

from simpletuner_fleet.settings.host_names import as_sent
from tests.web.console import Pages
from tests.web.stage import Stage

NAMES = [
    *("Bücher.example", "straße.example", "FAẞ.example", "βόλος.example", "ΒΌΛΟΣ.example"),
    *("☕.example", "\uff42ücher\u3002example", "a_b.münchen.example", "日本.example", "नमस्ते.example"),
]


async def test_a_browser_spells_a_name_as_we_do(stage: Stage, page_as: Pages) -> None:
    page = await page_as(stage, "nobody")
    await page.goto("/login")
    spelled = await page.evaluate("(names) => names.map((name) => new URL(`http://${name}/`).host)", NAMES)
    assert [as_sent(name) for name in NAMES] == spelled
