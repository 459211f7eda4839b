"""The watch itself: what it lets through and what it does not."""

import pytest

from tests.web.browser import CONTRAST, Role, axe, barriers
from tests.web.console import Console, Pages
from tests.web.fleet import PEOPLE

ELSEWHERE = "http://elsewhere.invalid/picture.png"
LINES = ("first", "second", "third", "faint", "raised")
GREY_ON_WHITE_AND_ON_BLACK = """
() => {
  const box = (id, parent, style) => {
    const made = document.createElement("div");
    Object.assign(made.style, { color: "#595959", fontSize: "16px", ...style });
    made.id = id;
    parent.append(made);
    return made;
  };
  const [black, white] = ["black", "white"].map((color) => box(color, document.body, { background: color }));
  for (const [id, parent, style] of [
    ["first", white, {}], ["second", white, {}], ["third", black, {}], ["faint", white, { color: "#999999" }],
    ["raised", white, { position: "relative", top: `${-white.offsetHeight - 100}px` }],
  ]) box(id, parent, { height: "20px", ...style }).textContent = `the ${id} grey line`;
  black.style.height = "400px";
}
"""


async def test_the_page_of_the_api_does_nothing_wrong(fleet: Console, page_as: Pages) -> None:
    page = await page_as(fleet, "nobody", language="hi", theme="dark")
    await page.goto("/docs")
    assert await page.title() == "SimpleTuner Fleet API"


@pytest.mark.parametrize(
    ("script", "offence"),
    [
        ("console.error('oh no')", "oh no"),
        ("setTimeout(() => alert('ah'))", "alert opened"),
        ("setTimeout(() => { throw new Error('oh no') })", "thrown"),
        (f"new Image().src = '{ELSEWHERE}'", "content policy breached: img-src"),
        (
            "document.body.append(Object.assign(document.createElement('script'), {text: 'top.x = 1'}))",
            "script-src",
        ),
        (f"location.href = '{ELSEWHERE}'", "another origin"),
    ],
)
async def test_what_a_page_may_not_do_is_told(
    fleet: Console, page_as: Pages, script: str, offence: str
) -> None:
    page = await page_as(fleet, "nobody")
    await page.goto("/docs")
    await page.evaluate(script)
    watch = page_as.watch(page)
    while offence not in "".join(watch.troubles):
        await page.wait_for_timeout(10)
    with pytest.raises(AssertionError, match=offence):
        watch.check()
    watch.expect("")


async def test_an_answer_of_5xx_is_told(fleet: Console, page_as: Pages) -> None:
    page = await page_as(fleet, "nobody")
    await page.route("**/broken", lambda route: route.fulfill(status=503, body="no"))
    await page.goto("/broken")
    watch = page_as.watch(page)
    with pytest.raises(AssertionError, match="answer 503"):
        watch.check()
    watch.expect("")


async def test_what_keeps_people_out_is_told(fleet: Console, page_as: Pages) -> None:
    page = await page_as(fleet, "nobody")
    await page.goto("/login")
    await page.evaluate("document.body.append(document.createElement('button'))")
    assert "button-name" in "".join(await barriers(page))
    with pytest.raises(AssertionError, match="keeps people out"):
        await axe(page, only=["button-name"])


async def test_a_contrast_is_told_where_the_same_text_was_seen_on_another_ground(
    fleet: Console, page_as: Pages
) -> None:
    page = await page_as(fleet, "nobody")
    await page.goto("/login")
    assert await barriers(page, only=CONTRAST) == []
    await page.evaluate(GREY_ON_WHITE_AND_ON_BLACK)
    for _ in range(2):
        (too_low,) = await barriers(page, only=CONTRAST)
        assert [name for name in LINES if f"#{name}" in too_low] == ["third", "faint", "raised"]


@pytest.mark.parametrize(("role", "name"), PEOPLE.items())
def test_everybody_is_logged_in_already(fleet: Console, role: Role, name: str) -> None:
    cookies = "; ".join(f"{key}={value}" for key, value in fleet.cookies(role).items())
    me = fleet.world.client.get(f"{fleet.url}/api/me", headers={"cookie": cookies}).json()
    assert me["name"] == name


async def test_a_new_server_knows_nobody(own_empty: Console, page_as: Pages) -> None:
    page = await page_as(own_empty, "nobody")
    await page.goto("/")
    assert page.url.startswith(f"{own_empty.url}/login")
