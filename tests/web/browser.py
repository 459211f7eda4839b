"""Real Chromium, and pages that may do nothing wrong while they are looked at.

Every page is watched: an error in the console, a breach of the content policy, an alert, a request to another origin or
an answer of 5xx fails the test at its end, however well it went otherwise.
"""

import os
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any, Literal
from urllib.parse import urlsplit

from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Page,
    Playwright,
    Request,
    Response,
    Route,
    async_playwright,
    expect,
)

from simpletuner_fleet.http.edge.problem_words import LANGUAGE_COOKIE
from simpletuner_fleet.web.frame.page import THEME_COOKIE

Language = Literal["en", "pt-BR", "hi", "zh", "ja"]
Theme = Literal["light", "dark"]
Role = Literal["admin", "member", "viewer", "nobody"]
Size = tuple[int, int]
Address = str | re.Pattern[str] | Callable[[str], bool]

LANGUAGES: tuple[Language, ...] = ("en", "pt-BR", "hi", "zh", "ja")
THEMES: tuple[Theme, ...] = ("light", "dark")
WIDE: Size = (1280, 800)
PHONE: Size = (360, 740)
NARROWEST: Size = (320, 640)

PROGRAMS = (
    *("chromium-headless-shell", "chromium", "chromium-browser"),
    *("google-chrome", "google-chrome-stable"),
)
"""The first has no window to draw, and takes two thirds of the others' time for a page."""
OWN_SCHEMES = ("data", "blob", "about")
GRAVE = ("serious", "critical")
CONTRAST = ("color-contrast",)
NAMED_ROLES = frozenset(
    [
        "button",
        "link",
        "heading",
        "image",
        "img",
        "textbox",
        "searchbox",
        "combobox",
        "listbox",
        "checkbox",
        "radio",
        "switch",
        "slider",
        "spinbutton",
        "tab",
        "menuitem",
        "dialog",
        "alertdialog",
        "progressbar",
        "meter",
        "DisclosureTriangle",
    ]
)
"""What people are to use or look at needs a name; a translation can take it away."""
MANY_LIKE_THE_FIRST = ".line:nth-child(n+20), tbody tr:nth-child(n+15), option:nth-child(n+9)"
"""What these would show, the rows before them have shown."""
SETTLED = "#live[data-state=live], body:not(:has(#live))"
PATIENCE_MS = 15_000
expect.set_options(timeout=PATIENCE_MS)
AXE_SCRIPT = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
TELL_BREACHES = """
document.addEventListener("securitypolicyviolation", (breach) => {
  console.error(`content policy breached: ${breach.effectiveDirective} ${breach.blockedURI} ${breach.sample}`);
});
"""
REMEMBER_CONTRASTS = """
const check = axe._audit.checks["color-contrast"];
const measure = check.evaluate;
const grounds = new Map();
const enough = new Set();
const groundOf = (element) => {
  if (!element) return "";
  if (!grounds.has(element)) {
    const style = getComputedStyle(element);
    const moved = style.position !== "static" || style.transform !== "none" || style.margin.includes("-");
    grounds.set(element, [
      style.backgroundColor, style.backgroundImage, style.backgroundClip, style.opacity, style.filter,
      style.mixBlendMode, moved ? grounds.size : "", groundOf(element.parentElement),
    ].join("|"));
  }
  return grounds.get(element);
};
check.evaluate = function (element, ...others) {
  const style = getComputedStyle(element);
  const looks = [
    style.color, style.fontSize, style.fontWeight, style.textShadow, style.webkitTextStroke, groundOf(element),
  ].join("|");
  if (enough.has(looks)) return true;
  const note = this.data;
  let noted = {};
  this.data = (data) => { noted = data; return note.call(this, data); };
  const result = measure.call(this, element, ...others);
  if (result === true && noted.bgColor && noted.fgColor) enough.add(looks);
  return result;
};
window.forgetContrasts = () => { grounds.clear(); enough.clear(); };
"""
"""Contrasts take most of axe's time. Text that looks like text before it, on grounds that all look alike, has the same.

Only one that is enough is remembered, and what is moved out of its place stands on a ground of its own.
"""
LOOK_FOR_BARRIERS = """
async ([only, without, repeated]) => {
  forgetContrasts();
  const found = await axe.run({ include: [document], exclude: [repeated] }, {
    resultTypes: ["violations"],
    preload: false,
    rules: Object.fromEntries(without.map((rule) => [rule, { enabled: false }])),
    ...(only.length ? { runOnly: { type: "rule", values: only } } : {}),
  });
  return found.violations.map(({ id, impact, help, nodes }) => ({
    id, impact, help, where: nodes.slice(0, 5).map((node) => `${node.target.join(" ")}: ${node.html.slice(0, 200)}`),
  }));
}
"""


def browser_program() -> str:
    program = os.environ.get("SIMPLETUNER_TEST_BROWSER") or next(
        filter(None, map(shutil.which, PROGRAMS)), None
    )
    assert program, (
        "No browser found.\n"
        "  why:  the tests of the console run in Chromium, and there is none on the PATH.\n"
        "  next: run ./dev setup as root, or install chromium, or set SIMPLETUNER_TEST_BROWSER to one."
    )
    return program


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await _launch(playwright)
        try:
            yield browser
        finally:
            await browser.close()


async def _launch(playwright: Playwright) -> Browser:
    # As root, as in a container, Chromium has no sandbox to offer.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    return await playwright.chromium.launch(executable_path=browser_program(), args=arguments)


class Watch:
    """What went wrong on the pages of one context."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.troubles: list[str] = []
        self.allowed: list[str] = []
        """Parts of sentences that this test expects to be said."""

    def on(self, context: BrowserContext) -> None:
        context.on("console", self._console)
        context.on("weberror", lambda thrown: self._note(f"thrown: {thrown.error}"))
        context.on("dialog", self._dialog)
        context.on("request", self._request)
        context.on("response", self._response)

    def expect(self, *parts: str) -> None:
        self.allowed += parts

    def check(self) -> None:
        offences = [trouble for trouble in self.troubles if not any(part in trouble for part in self.allowed)]
        assert not offences, "the page did what it may not:\n" + "\n".join(offences)

    def _note(self, trouble: str) -> None:
        self.troubles.append(trouble)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self._note(f"console: {message.text} ({message.location.get('url', '')})")

    async def _dialog(self, dialog: Dialog) -> None:
        """We ask with elements of the page; this is what a script that slipped in would do."""
        self._note(f"{dialog.type} opened: {dialog.message}")
        await dialog.dismiss()

    def _request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in OWN_SCHEMES and f"{parts.scheme}://{parts.netloc}" != self.origin:
            self._note(f"asked another origin: {request.url}")

    def _response(self, answer: Response) -> None:
        if answer.status >= 500:
            self._note(f"answer {answer.status}: {answer.url}")


async def watched_context(
    browser: Browser,
    origin: str,
    *,
    language: Language = "en",
    theme: Theme = "light",
    size: Size = WIDE,
    cookies: dict[str, str] | None = None,
    **more: Any,
) -> tuple[BrowserContext, Watch]:
    """`cookies` beside those of language and theme."""
    context = await browser.new_context(
        base_url=origin,
        viewport={"width": size[0], "height": size[1]},
        locale=language,
        color_scheme=theme,
        reduced_motion="reduce",
        service_workers="block",
        **more,
    )
    context.set_default_timeout(PATIENCE_MS)
    kept = {LANGUAGE_COOKIE: language, THEME_COOKIE: theme, **(cookies or {})}
    await context.add_cookies([{"name": name, "value": value, "url": origin} for name, value in kept.items()])
    await context.add_init_script(TELL_BREACHES)
    watch = Watch(origin)
    watch.on(context)
    return context, watch


async def answer_first(
    page: Page, address: Address, answer: Callable[[Route], Awaitable[None]], *, times: int = 1
) -> None:
    """Has the first requests for this address answered so, and lets all further ones pass.

    The route stays where it is: one that is taken away while its page asks for something loses that request now and then.
    """
    left = times

    async def answer_or_pass(route: Route) -> None:
        nonlocal left
        if left > 0:
            left -= 1
            await answer(route)
        else:
            await route.fallback()

    await page.route(address, answer_or_pass)


async def visit(page: Page, path: str) -> Response:
    """Until all of it is there, and its stream is live where it has one."""
    answer = await page.goto(path)
    assert answer
    await page.wait_for_selector(SETTLED, state="attached")
    return answer


async def barriers(page: Page, *, only: Sequence[str] = (), without: Sequence[str] = ()) -> list[str]:
    """What axe finds that keeps people out: serious and critical findings of all its rules, or of these."""
    if not await page.evaluate("Boolean(window.axe)"):
        await page.evaluate(f"(() => {{ {AXE_SCRIPT}; {REMEMBER_CONTRASTS} }})()")
    found_barriers = await page.evaluate(LOOK_FOR_BARRIERS, [list(only), list(without), MANY_LIKE_THE_FIRST])
    return [
        "\n    ".join([f"{one['impact']} {one['id']}: {one['help']}", *one["where"]])
        for one in found_barriers
        if one["impact"] in GRAVE
    ]


async def axe(page: Page, *, only: Sequence[str] = (), without: Sequence[str] = ()) -> None:
    problems = await barriers(page, only=only, without=without)
    assert not problems, f"{page.url} keeps people out:\n  " + "\n  ".join(problems)


async def assert_all_is_named(page: Page) -> None:
    """By the tree that the browser itself shows a screen reader; far cheaper than axe."""
    assert await page.title(), page.url
    assert await page.locator("h1").count() == 1, page.url
    session = await page.context.new_cdp_session(page)
    tree = await session.send("Accessibility.getFullAXTree")
    await session.detach()
    roles = [
        (node["role"]["value"], node.get("name", {}).get("value", "").strip())
        for node in tree["nodes"]
        if not node["ignored"]
    ]
    assert {"link", "heading"} & {role for role, _name in roles}, f"{page.url} shows nothing"
    nameless = [role for role, name in roles if role in NAMED_ROLES and not name]
    assert not nameless, f"{page.url} has parts without a name: {', '.join(nameless)}"


async def wear(page: Page, theme: Theme) -> None:
    """As the page itself changes its theme: without asking the server."""
    await page.evaluate("(theme) => { document.documentElement.dataset.theme = theme }", theme)


async def prefer(page: Page, origin: str, language: Language, theme: Theme) -> None:
    """From the next page on."""
    kept = {LANGUAGE_COOKIE: language, THEME_COOKIE: theme}
    await page.context.add_cookies(
        [{"name": name, "value": value, "url": origin} for name, value in kept.items()]
    )


async def resize(page: Page, size: Size) -> None:
    await page.set_viewport_size({"width": size[0], "height": size[1]})
