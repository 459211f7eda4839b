"""No text becomes markup on a page that could bring a script with it, whichever way it got there."""

import pytest

from simpletuner_fleet.web.frame.policy import POLICY
from tests.web.browser import visit
from tests.web.console import Console, Pages

SLIPPED_IN = [
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    "<script src='https://elsewhere.invalid/x.js'></script>",
    "<script src='/api/jobs/j_1/artifacts/x.js'></script>",
    "<a href=' javascript:alert(1)'>x</a>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<template><svg onload=alert(1)></svg></template>",
    "<button hx-on:click='alert(1)'>x</button>",
    "<form><button formaction=javascript:alert(1)>x</button></form>",
    "<body onload=alert(1)>",
    "<base href='https://elsewhere.invalid/'>",
    "<meta http-equiv=refresh content='0;url=/logout'>",
]
WAYS = [
    "document.querySelector('main').innerHTML = text",
    "document.querySelector('main').insertAdjacentHTML('beforeend', text)",
    "new DOMParser().parseFromString(text, 'text/html')",
    "document.write(text)",
    "document.createRange().createContextualFragment(text)",
]
TRIED = "(text) => { try { %s; return 'done'; } catch (error) { return error.name; } }"


def test_every_page_asks_for_trusted_types() -> None:
    assert "require-trusted-types-for 'script'" in POLICY


@pytest.mark.parametrize("way", WAYS)
async def test_markup_with_a_script_is_refused_and_other_markup_is_not(
    fleet: Console, page_as: Pages, way: str
) -> None:
    page = await page_as(fleet, "admin")
    await visit(page, "/jobs")
    for text in SLIPPED_IN:
        assert await page.evaluate(TRIED % way, text) == "TypeError", text
    page_as.watch(page).expect(
        "base-uri", "require-trusted-types-for", "the 'default' policy failed to execute"
    )
    assert await page.evaluate(TRIED % way, "<p>two <b>words</b> <a href='/jobs'>x</a></p>") == "done"


async def test_no_text_becomes_a_script_or_the_address_of_one_elsewhere(
    fleet: Console, page_as: Pages
) -> None:
    page = await page_as(fleet, "admin")
    await visit(page, "/jobs")
    for way in (
        "new Worker(text)",
        "document.createElement('script').src = text",
        "document.createElement('script').text = text",
        "trustedTypes.createPolicy('mine', {})",
    ):
        for text in ("https://elsewhere.invalid/x.js", "/api/jobs/j_1/artifacts/x.js"):
            assert await page.evaluate(TRIED % way, text) == "TypeError", way
    page_as.watch(page).expect("trusted-types", "the 'default' policy failed to execute", "Trusted Type")
