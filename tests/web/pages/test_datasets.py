"""Datasets in the browser: a folder is uploaded, looked at, used and deleted; whatever is in it, nothing of it runs."""

import hashlib
import json
import re
from pathlib import Path

from playwright.async_api import Page, Route, expect

from simpletuner_fleet.core.configs.datasets import canonical, prefixed_id
from simpletuner_fleet.core.training.checkpoint import FileEntry, path_complaint
from simpletuner_fleet.web.frame.assets import ASSETS
from tests.http.data_kit import dataset_id, push
from tests.web.browser import PHONE, barriers, visit
from tests.web.console import Pages
from tests.web.fleet import MARKUP, SVG
from tests.web.machines import picture
from tests.web.stage import Stage

UPLOAD = "/datasets/upload"
UPLOADED = re.compile(r"/datasets/[0-9a-f]{64}$")
UPLOADED_WITHIN_MS = 60_000
"""Each of hundreds of files is a request or two."""
HTML = b"<!doctype html><script>alert(1)</script>"
LARGE = 20 * 1024 * 1024


def folder_at(place: Path, files: dict[str, bytes]) -> Path:
    for path, content in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(content)
    return place


async def choose(page: Page, folder: Path) -> None:
    await visit(page, UPLOAD)
    await page.get_by_label("Folder").set_input_files(folder)


async def look_through(page: Page) -> None:
    shown = page.locator(".picture")
    await expect(shown).to_have_count(7)
    first = shown.filter(has_text="cats/1.png")
    await expect(first.locator(".caption")).to_have_text("a cat in a hat, größer 🐈")
    await expect(shown.filter(has_text="cats/2.png").locator(".caption")).to_have_text(MARKUP.strip())
    for path in ("drawing.png", "page.jpg", "empty.webp"):
        await expect(shown.filter(has_text=path).locator("img")).to_have_count(0)
        await expect(shown.filter(has_text=path)).to_contain_text("Not a PNG, JPEG or WebP picture")
    assert await barriers(page) == []
    await first.locator("a").focus()
    await page.keyboard.press("Enter")
    look = page.get_by_role("dialog", name="cats/1.png")
    await expect(look.locator("img")).to_have_js_property("naturalWidth", 256)
    await page.keyboard.press("ArrowRight")
    await expect(page.get_by_role("dialog", name="cats/2.png")).to_contain_text("<img")
    await page.keyboard.press("Escape")
    await expect(shown.filter(has_text="cats/2.png").locator("a")).to_be_focused()
    await page.get_by_role("link", name=re.compile("Without a caption")).click()
    await expect(page.locator(".picture")).to_have_count(5)
    await page.get_by_role("link", name=re.compile("All files")).click()
    await expect(page.locator("tbody tr")).to_have_count(10)


async def test_a_folder_is_uploaded_looked_at_used_and_deleted(
    stage: Stage, page_as: Pages, tmp_path: Path
) -> None:
    files = {
        "cats/1.png": picture(1),
        "cats/1.txt": "a cat in a hat, größer 🐈".encode(),
        "cats/2.png": picture(2),
        "cats/2.caption": MARKUP.encode(),
        "🐈-after.png": picture(3),
        "ￗ-before.png": picture(3),
        "drawing.png": SVG,
        "page.jpg": HTML,
        "empty.webp": b"",
        "notes.md": b"# about",
    }
    index = {"aspect_ratio_bucket_indices_cats.json": b"{}"}
    page = await page_as(stage, "member")
    await choose(page, folder_at(tmp_path / "my pets", {**files, **index}))
    await expect(page.locator("#chosen")).to_contain_text("10 files")
    await expect(page.locator("#chosen")).to_contain_text("1 index file of the trainer is left out.")
    await expect(page.get_by_label("Name")).to_have_value("my-pets")
    await page.get_by_label("Visible to").select_option("private")
    await page.get_by_role("button", name="Upload", exact=True).click()
    await page.wait_for_url(UPLOADED, timeout=UPLOADED_WITHIN_MS)
    known = await stage.running.get(f"/api/data/{dataset_id(files)}")
    assert (known["name"], known["files"], known["visibility"]) == ("my-pets", 10, "private")

    await look_through(page)
    await stage.machine()
    config = {"trainer": "demo", "settings": {}, "datasets": {"pets": dataset_id(files)}}
    job = await stage.crew.submit("member", config=config, name="with-pets", target="worker")
    await visit(page, f"/datasets/{dataset_id(files)}")
    await expect(page.locator("#dataset-jobs")).to_contain_text("with-pets")
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("button", name="Delete my-pets").click()
    await expect(page.get_by_role("dialog")).to_contain_text(f"Job {job['job_id']} has not ended")
    await page.get_by_role("button", name="Back").click()
    await visit(page, f"/jobs?dataset={dataset_id(files)}&show=")
    await expect(page.locator("#content")).to_contain_text("with-pets")

    other = await page_as(stage, "viewer")
    await visit(other, "/datasets")
    await expect(other.locator("#content")).not_to_contain_text("my-pets")
    page_as.watch(other).expect("404")
    refused = await other.goto(f"/datasets/{dataset_id(files)}")
    assert refused
    assert refused.status == 404

    await stage.running.post(f"/api/jobs/{job['job_id']}/cancel")
    page_as.watch(page).expect("409")
    await visit(page, f"/datasets/{dataset_id(files)}")
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("button", name="Delete my-pets").click()
    await page.wait_for_url(re.compile(r"/datasets$"))
    await expect(page.locator("#content")).to_contain_text("No datasets yet")


async def test_a_cancelled_upload_continues_where_it_stopped(
    stage: Stage, page_as: Pages, tmp_path: Path
) -> None:
    files = {"large.bin": bytes(range(256)) * (LARGE // 256), "small.txt": b"small"}
    page = await page_as(stage, "member", size=PHONE)
    sent: list[str] = []

    async def hold_the_second_part(route: Route) -> None:
        sent.append(route.request.url)
        if "offset=0" in route.request.url:
            await route.continue_()
        else:
            await page.get_by_role("button", name="Cancel").click()

    await page.route(re.compile("/api/data/objects/.*offset"), hold_the_second_part)
    await choose(page, folder_at(tmp_path / "large", files))
    await page.get_by_role("button", name="Upload", exact=True).click()
    await expect(page.locator("#chosen")).to_contain_text("The upload was cancelled.")
    assert await barriers(page) == []
    await page.unroute_all()
    sent.clear()
    page.on("request", lambda request: sent.append(request.url))
    await page.get_by_role("button", name="Upload", exact=True).click()
    await page.wait_for_url(UPLOADED, timeout=UPLOADED_WITHIN_MS)
    large = [url for url in sent if hashlib.sha256(files["large.bin"]).hexdigest() in url]
    assert [url.partition("?")[2] for url in large] == [f"offset={16 * 2**20}&size={LARGE}"]
    assert (await stage.running.get(f"/api/data/{dataset_id(files)}"))["files"] == 2


async def test_a_folder_is_dropped_on_the_page(stage: Stage, page_as: Pages, tmp_path: Path) -> None:
    """More than a browser gives at a time, in folders of folders."""
    files = {f"set-{number % 3}/deep/{number:03}.txt": f"caption {number}".encode() for number in range(250)}
    folder = folder_at(tmp_path / "dropped here", files)
    page = await page_as(stage, "member")
    await visit(page, UPLOAD)
    box = await page.locator("#drop").bounding_box()
    assert box
    session = await page.context.new_cdp_session(page)
    held = {"items": [], "files": [str(folder)], "dragOperationsMask": 1}
    place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2, "data": held}
    for kind in ("dragEnter", "dragOver"):
        await session.send("Input.dispatchDragEvent", {"type": kind, **place})
    await expect(page.locator("#drop.over")).to_be_visible()
    await session.send("Input.dispatchDragEvent", {"type": "drop", **place})
    await expect(page.locator("#chosen")).to_contain_text("250 files")
    await expect(page.locator("#drop.over")).to_have_count(0)
    await expect(page.get_by_label("Name")).to_have_value("dropped-here")
    await page.get_by_role("button", name="Upload", exact=True).click()
    await page.wait_for_url(UPLOADED, timeout=UPLOADED_WITHIN_MS)
    assert (await stage.running.get(f"/api/data/{dataset_id(files)}"))["files"] == 250


async def test_what_cannot_be_uploaded_is_said_at_the_file(
    stage: Stage, page_as: Pages, tmp_path: Path
) -> None:
    # The browser itself makes a slash of a backslash: two files then have one path.
    bad = {"back\\slash.png": b"1", "back/slash.png": b"2", "tab\there.png": b"3", "fa\u200dmily.png": b"4"}
    page = await page_as(stage, "member")
    await choose(page, folder_at(tmp_path / "bad", bad))
    said = page.locator(".problem li")
    await expect(said).to_have_count(3)
    await expect(said.filter(has_text="here.png")).to_contain_text("cannot be printed")
    await expect(said.filter(has_text="back/slash.png")).to_contain_text("Another file has the same path.")
    await expect(page.get_by_role("button", name="Upload", exact=True)).to_be_disabled()

    # What only the server knows is said at the file, too: here that a digest is another's.
    await choose(page, folder_at(tmp_path / "good", {"a.png": picture(1), "b.png": picture(2)}))

    async def refuse(route: Route) -> None:
        problem = {
            "title": "Invalid",
            "code": "invalid",
            "detail": "A path holds printable characters and no backslash.",
            "errors": [{"path": "$.files[1].path", "detail": "…"}],
        }
        await route.fulfill(
            status=422, body=json.dumps(problem), headers={"content-type": "application/problem+json"}
        )

    await page.route("**/api/data", refuse)
    page_as.watch(page).expect("422")
    await page.get_by_role("button", name="Upload", exact=True).click()
    await expect(page.locator(".problem li")).to_contain_text(
        re.compile("b.png .* A path holds printable characters")
    )


async def test_the_page_reads_and_lists_files_as_the_server_does(stage: Stage, page_as: Pages) -> None:
    page = await page_as(stage, "member")
    await visit(page, UPLOAD)
    manifest, sums = ASSETS.url("js/data/dataset-manifest.js"), ASSETS.url("js/data/sha256.js")
    paths = ["b", "a/b", "a-b", "ￗ", "🐈", "é", "日本/猫.png", 'say "hi"', "z" * 300, "a b", "…"]
    entries = [FileEntry(path=path, size=len(path), sha256=f"{at:064x}") for at, path in enumerate(paths)]
    made = await page.evaluate(
        "async ([script, files]) => new TextDecoder().decode((await import(script)).canonical(files))",
        [manifest, [{"path": one.path, "size": one.size, "sha256": one.sha256} for one in entries]],
    )
    assert made == canonical(entries).decode()

    doubtful = [
        *paths,
        *("", "/a", "a//b", "../a", "a/./b", "a/..", "..a", "back\\slash", "a\nb", "a\u00a0b", "a\u200db"),
        *("\u2028", "\ue000", "é" * 127 + "x", "é" * 128, "x/" * 512 + "x", "x/" * 511 + "x"),
    ]
    complaints = await page.evaluate(
        "async ([script, paths]) => { const { complaint } = await import(script);"
        " return paths.map((path) => complaint(path) !== ''); }",
        [manifest, doubtful],
    )
    assert complaints == [path_complaint(path) is not None for path in doubtful]

    sizes = [0, 1, 55, 56, 63, 64, 65, 127, 1000, 100_003]
    digests = await page.evaluate(
        """async ([script, sizes]) => {
          const { hex, Sha256 } = await import(script);
          return sizes.map((size) => {
            const bytes = Uint8Array.from({ length: size }, (_, at) => (at * 7) % 251);
            const sum = new Sha256();
            for (let at = 0; at < size; at += 77) sum.update(bytes.subarray(at, at + 77));
            return hex(sum.digest());
          });
        }""",
        [sums, sizes],
    )
    assert digests == [
        hashlib.sha256(bytes((at * 7) % 251 for at in range(size))).hexdigest() for size in sizes
    ]


async def test_a_picture_is_answered_so_that_nothing_in_it_can_run(stage: Stage) -> None:
    http = stage.running.http
    files = {"a.png": picture(1), "b.png": HTML, "c.svg": SVG}
    called = (await push(http, files)).removeprefix(prefixed_id(""))
    good = await http.get(f"/datasets/{called}/pictures/{hashlib.sha256(files['a.png']).hexdigest()}")
    assert (good.status_code, good.content) == (200, files["a.png"])
    assert good.headers["content-type"] == "image/png"
    assert good.headers["x-content-type-options"] == "nosniff"
    assert good.headers["content-security-policy"].endswith("default-src 'none'; sandbox")
    for path in ("b.png", "c.svg"):
        digest = hashlib.sha256(files[path]).hexdigest()
        refused = await http.get(f"/datasets/{called}/pictures/{digest}")
        assert refused.status_code == 404
        assert b"alert" not in refused.content
