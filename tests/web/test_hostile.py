"""Markup and scripts wherever people and programs may write: every page shows them as text, and nothing else happens."""

from typing import Any

from playwright.async_api import Page, expect

from tests.http.data_kit import push
from tests.web.browser import visit
from tests.web.console import Pages
from tests.web.fleet import DATASET, machines_from_elsewhere
from tests.web.machines import RTX4090, Work, picture
from tests.web.page_table import PAGES, page_paths
from tests.web.stage import Stage

CORPUS = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "\"'><svg onload=alert(3)>",
    "</script><script>alert(4)</script>",
    "</title></textarea></style><iframe src=javascript:alert(5)>",
    "{{7*7}}${7*7}#{7*7}<%= 7*7 %>{% include 'x' %}",
    "' autofocus onfocus=alert(6) x='",
    "javascript:alert(7)",
    "<a href=javascript:alert(8) id=live data-region=jobs>x</a>",
    "<form data-api='DELETE /api/x'><button hx-get=/x hx-trigger=load data-api='POST /api/x'>",
    "%(name)s %s {0} \\u003cscript\\u003e",
)
UNPRINTABLE = "\u202egnp.exe\u2028\ufeff\x00\x1b[2J"
ALL = " ".join(CORPUS)
SHORT = "\"'><img src=x onerror=alert(9)>"
NAME = ALL[:200]
LABELS = {"kind": SHORT, **{f"k{at}{one[:20]}": one[:60] for at, one in enumerate(CORPUS)}}
CONFIG = "hostile"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(3)"><script>alert(4)</script></svg>'
PAGE = b"<!doctype html><script>alert(5)</script>"
SLIPPED_IN = "script:not([src]):not([type='application/json']), img[src='x'], [onerror], [onload], [onfocus], main iframe"


async def hostile_job(stage: Stage) -> Work:
    command = {"command": ["true", ALL], ALL: ALL, "nested": {SHORT: [ALL]}}
    config: dict[str, Any] = {"trainer": "command", "settings": command, "env": {"NOTE": ALL}}
    await stage.running.save_config(CONFIG, config)
    work = await stage.begin(config_name=CONFIG, name=NAME, worker_labels={"kind": "*"})
    await work.say(
        [*CORPUS, UNPRINTABLE, f"\x1b[31m{ALL}\x1b[0m", f"\x1b]8;;javascript:alert(1)\x07{ALL}\x1b]8;;\x07"]
    )
    at = stage.running.clock.now()
    values = {"loss": 0.5, "__proto__": 0.25, "constructor.loss": 0.1, "toString": 1.0}
    await work.send_points([{"step": step, "at": at + step, "values": values} for step in range(1, 4)])
    await work.store("artifact", "samples-1", {f"{SHORT}.png".replace("/", "-"): picture(1)}, 1)
    await work.store("artifact", "disguised", {"page.png": PAGE, "drawing.png": SVG, "drawing.svg": SVG}, 2)
    await work.store("checkpoint", "checkpoint-3", {"<b>weights<b>.bin": b"x"}, 3)
    await work.note("hostile", ALL)
    progress = {"step": 3, "total": 10, "loss": 0.5, "phase": SHORT}
    await work.report("running", progress=progress)
    return work


async def hostile_fleet(stage: Stage) -> tuple[str, str]:
    """A worker and a job, and everything around them, as hostile as the API lets them be."""
    machine = await stage.crew.machine("gpu-1", RTX4090, labels=LABELS)
    await machines_from_elsewhere(stage.running, ALL)
    await push(stage.running.http, DATASET)
    work = await hostile_job(stage)
    await work.report("failed", exit_code=1, error=ALL, last_lines=f"ValueError: {ALL}")
    await stage.begin(config_name=CONFIG, name=SHORT, worker_labels={"kind": "*"})
    asked = {"config_name": CONFIG, "name": NAME, "worker_labels": {"kind": SHORT}, "target": "worker"}
    await stage.crew.submit("admin", **asked)
    await stage.running.post(f"/api/admin/workers/{machine.id}/drain", {"note": ALL})
    for path, body in {
        "/api/admin/users": {"name": SHORT, "role": "member"},
        "/api/admin/tokens": {"name": SHORT, "permissions": ["jobs.read"]},
        "/api/teams": {"name": SHORT},
        "/api/approvals/rules": {"name": SHORT, "trainer": "command", "count": 1},
        "/api/prices": {"gpu": SHORT, "price_micros": 1},
        "/api/admin/sign-in/providers": {
            "id": "corp",
            "title": SHORT,
            "issuer": "https://corp.example",
            "client_id": SHORT,
            "roles": {"member": [SHORT]},
            "teams": {SHORT: {"lead": [SHORT]}},
            "enabled": True,
        },
    }.items():
        answer = await stage.running.http.post(path, json=body)
        assert answer.status_code == 201, answer.text
    held = await stage.crew.submit("member", **asked)
    assert held["status"] == "blocked"
    await stage.running.post(f"/api/approvals/{held['job_id']}/reject", {"note": ALL})
    async with stage.running.as_user(None) as stranger:
        registration = {"name": ALL, "trainers": [], "attempts": []}
        await stranger.post("/api/workers/register", json=registration, headers={"X-Worker-Token": SHORT})
        await stranger.post("/api/login", json={"name": ALL, "password": ALL})
    return machine.id, work.job_id


async def is_harmless(page: Page) -> None:
    assert await page.locator(SLIPPED_IN).count() == 0, page.url
    text = await page.locator("body").inner_text()
    assert "49${" not in text, page.url
    assert "${49}" not in text, page.url


async def test_hostile_text_is_only_text_on_every_page(stage: Stage, page_as: Pages) -> None:
    worker, job = await hostile_fleet(stage)
    page = await page_as(stage, "admin")
    page_as.watch(page).expect("404 (Not Found)")
    for row in PAGES:
        if row.path not in page_paths() or row.role != "admin":
            continue
        name = CONFIG if "{name}" in row.path else worker if "workers/{id}" in row.path else job
        if row.path.startswith(("/machines", "/datasets")):
            name = "".join(row.names)
        answer = await visit(page, row.path.replace("{id}", name).replace("{name}", name))
        assert answer.status == 200, row.path
        await page.wait_for_selector("#charts[data-ready], #log[data-ready], body:not(:has(#charts, #log))")
        await is_harmless(page)


async def test_hostile_progress_breaks_no_page_and_is_shown_on_none(stage: Stage) -> None:
    await stage.machine()
    work = await stage.begin()
    for said in (
        {"step": SHORT, "total": SHORT, "loss": SHORT, "rate": SHORT, "eta_s": SHORT, "more": SHORT},
        {"step": 1e300, "total": 2**62, "loss": [1], "rate": -1e300, "eta_s": 1e300, "phase": [SHORT]},
    ):
        await work.report("running", progress=said)
        for path in ("/", "/jobs", f"/jobs/{work.job_id}"):
            answer = await stage.running.http.get(path, headers={"Accept": "text/html"})
            assert answer.status_code == 200, path
            assert "onerror" not in answer.text, path
            assert "e+300" not in answer.text, path


async def test_what_looks_like_a_picture_by_its_name_alone_is_not_given_out(
    stage: Stage, page_as: Pages
) -> None:
    await stage.crew.machine("gpu-1", RTX4090, labels=LABELS)
    work = await hostile_job(stage)
    page = await page_as(stage, "admin")
    page_as.watch(page).expect("404 (Not Found)")
    await visit(page, f"/jobs/{work.job_id}")
    pictures = page.locator("#samples img")
    await expect(pictures).to_have_count(3)
    kinds = []
    for path in await pictures.evaluate_all("(all) => all.map((one) => one.getAttribute('src'))"):
        answer = await page.request.get(path)
        kinds.append((answer.status, answer.headers["content-type"]))
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["content-security-policy"] or answer.status == 200
    assert min(kinds) == (200, "image/png")
    assert [status for status, _ in kinds].count(404) == 2


async def test_files_of_a_job_are_downloads_and_never_pages(stage: Stage, page_as: Pages) -> None:
    await stage.crew.machine("gpu-1", RTX4090, labels=LABELS)
    work = await hostile_job(stage)
    page = await page_as(stage, "admin")
    page_as.watch(page).expect("404 (Not Found)")
    await visit(page, f"/jobs/{work.job_id}/checkpoints")
    links = page.locator("main a[href*='/api/']")
    assert await links.count() > 0
    for path in await links.evaluate_all("(all) => all.map((one) => one.getAttribute('href'))"):
        answer = await page.request.get(path)
        assert answer.headers["x-content-type-options"] == "nosniff", path
        assert answer.headers["content-disposition"].startswith("attachment"), path
        assert "html" not in answer.headers["content-type"], path
        assert "svg" not in answer.headers["content-type"], path
