"""A folder of many files and a file of gigabytes through the browser: nothing grows with them, and a server that went away
meanwhile costs nothing but the part that was on its way.

Left out unless asked for: `./dev test -m long tests/web/costs/test_large_upload.py -s`. `SIMPLETUNER_TEST_UPLOAD_FILES` and
`SIMPLETUNER_TEST_UPLOAD_GB` change the sizes.
"""

import asyncio
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import CDPSession, Page, expect
from playwright.async_api import Error as PlaywrightError

from tests.e2e.kit import World
from tests.web.browser import visit
from tests.web.console import Console, Pages, running_console

FILES = int(os.environ.get("SIMPLETUNER_TEST_UPLOAD_FILES", "20000"))
GIGABYTES = float(os.environ.get("SIMPLETUNER_TEST_UPLOAD_GB", "10"))
PATIENCE_MS = 3_600_000
MOST_HEAP_BYTES = 200_000_000
MOST_SERVER_KB = 500_000
STATE = """() => ["doing", "bar"].map((id) => document.getElementById(id))
  .map((one) => one.value ?? one.textContent).concat(document.querySelector("[data-problem]").textContent.trim())"""

pytestmark = [pytest.mark.long, pytest.mark.timeout(2 * PATIENCE_MS / 1000)]


@pytest.fixture(scope="module")
def spacious(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    with running_console(World(tmp_path_factory.mktemp("spacious"))) as console:
        yield console


def peak_kb(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0])


async def heap_bytes(session: CDPSession) -> float:
    metrics = (await session.send("Performance.getMetrics"))["metrics"]
    return float(next(one["value"] for one in metrics if one["name"] == "JSHeapUsedSize"))


async def upload(page: Page, folder: Path, console: Console, *, break_at: float) -> tuple[float, float]:
    """Returns the seconds it took and the largest heap. The server is killed and started anew at a share of the whole."""
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable")
    await visit(page, "/datasets/upload")
    await page.get_by_label("Folder").set_input_files(folder, timeout=PATIENCE_MS)
    await expect(page.locator("#start")).to_be_enabled(timeout=PATIENCE_MS)
    began, largest, broken = time.monotonic(), 0.0, False
    await page.get_by_role("button", name="Upload", exact=True).click()
    while "/datasets/upload" in page.url:
        await asyncio.sleep(0.25)
        try:
            largest = max(largest, await heap_bytes(session))
            doing, share, problem = await page.evaluate(STATE)
        except PlaywrightError:  # it has just gone on to the dataset
            continue
        assert not problem
        if not broken and "Sending" in doing and share >= break_at:
            broken = True
            await asyncio.to_thread(console.world.kill_server)
            await asyncio.to_thread(console.world.restart_server)
    assert broken
    return time.monotonic() - began, largest


async def finish(page: Page, console: Console, files: int, took: tuple[float, float]) -> None:
    await page.wait_for_url(re.compile(r"/datasets/[0-9a-f]{64}$"), timeout=PATIENCE_MS)
    known = console.world.get(f"/api/data/sha256:{page.url.rpartition('/')[2]}")
    server_kb = peak_kb(console.world.orchestrator.pid)
    stored = f"{files} files, {known['total_bytes'] / 1e9:.2f} GB: {took[0]:.0f} s"
    print(f"{stored}, heap {took[1] / 1e6:.0f} MB, server {server_kb / 1e3:.0f} MB")
    assert known["files"] == files
    assert took[1] < MOST_HEAP_BYTES
    assert server_kb < MOST_SERVER_KB


async def test_thousands_of_files_arrive_though_the_server_goes_away_meanwhile(
    spacious: Console, page_as: Pages, tmp_path: Path
) -> None:
    folder = tmp_path / "many-files"
    for number in range(FILES):
        place = folder / f"part-{number // 500:03}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:06}.txt").write_text(f"caption of picture {number}\n" * 100)
    page = await page_as(spacious, "admin")
    page_as.watch(page).expect("ERR_", "50")
    took = await upload(page, folder, spacious, break_at=0.3)
    await finish(page, spacious, FILES, took)


async def test_a_file_of_gigabytes_arrives_though_the_server_goes_away_meanwhile(
    spacious: Console, page_as: Pages, tmp_path: Path
) -> None:
    folder = tmp_path / "large-file"
    folder.mkdir()
    with (folder / "video.bin").open("wb") as file:
        file.truncate(int(GIGABYTES * 1e9))
    page = await page_as(spacious, "admin")
    page_as.watch(page).expect("ERR_", "50")
    took = await upload(page, folder, spacious, break_at=0.3)
    await finish(page, spacious, 1, took)
