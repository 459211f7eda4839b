"""`./dev screenshots`: the pictures of the console in docs/images, taken of a fleet that is the same every time."""

import argparse
import asyncio
import io
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2
from msgspec import Struct
from PIL import Image
from playwright.async_api import Browser

from tests.e2e.kit import World
from tests.web.browser import PHONE, WIDE, Language, Size, Theme, chromium, visit, watched_context
from tests.web.console import Console, running_console

FOLDER = Path(__file__).parent.parent / "docs" / "images"
COLOURS = 256
MAX_BYTES = 150 * 1024


class Shot(Struct, frozen=True):
    name: str
    path: str
    """`{running}` and the like stand for jobs and workers of the fleet by what they show."""
    theme: Theme = "light"
    language: Language = "en"
    size: Size = WIDE


SHOTS = (
    Shot("overview", "/"),
    Shot("overview-dark", "/", theme="dark"),
    Shot("train", "/train"),
    Shot("jobs", "/jobs"),
    Shot("job", "/jobs/{running}"),
    Shot("job-dark", "/jobs/{running}", theme="dark"),
    Shot("workers", "/admin/workers"),
    Shot("workers-hindi", "/admin/workers", language="hi"),
    Shot("phone", "/jobs/{running}", size=PHONE),
)


async def take(browser: Browser, console: Console, shot: Shot) -> bytes:
    cookies = console.cookies("admin")
    context, watch = await watched_context(
        browser, console.url, language=shot.language, theme=shot.theme, size=shot.size, cookies=cookies
    )
    try:
        page = await context.new_page()
        answer = await visit(page, shot.path.format_map({**console.state.jobs, **console.state.workers}))
        assert answer.ok, f"{shot.path}: {answer.status}"
        await page.evaluate("document.fonts.ready")
        picture = await page.screenshot(animations="disabled", caret="hide")
    finally:
        await context.close()
    watch.check()
    return picture


def compress(picture: bytes) -> bytes:
    """Leaves few colours: they are enough for a page, and a third of the bytes; the rare ones, like a green dot, stay."""
    buffer = io.BytesIO()
    with Image.open(io.BytesIO(picture)) as image:
        plain = image.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        plain.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


@asynccontextmanager
async def workers_connected(console: Console) -> AsyncIterator[None]:
    """Lets the workers that joined be there: a worker without a stream is given nothing, and pages say so."""
    async with AsyncExitStack() as stack:
        for worker in console.state.connected:
            headers = {"X-Worker-Token": worker.token}
            client = httpx2.AsyncClient(base_url=console.url, headers=headers, trust_env=False)
            await stack.enter_async_context(client)
            asked = {"worker_id": worker.id, "incarnation": worker.incarnation}
            stream = await stack.enter_async_context(
                client.stream("GET", "/api/workers/stream", params=asked)
            )
            assert stream.is_success, f"{worker.id}: {stream.status_code}"
            answer = await client.post("/api/workers/heartbeat", json=worker.heartbeat)
            assert answer.is_success, answer.text
        yield


async def take_all(console: Console, shots: list[Shot]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    async with chromium() as browser, workers_connected(console):
        for shot in shots:
            picture = compress(await take(browser, console, shot))
            assert len(picture) <= MAX_BYTES, f"{shot.name}: {len(picture)} bytes are too many"
            (FOLDER / f"{shot.name}.png").write_bytes(picture)
            print(f"{shot.name:<16}{len(picture) / 1024:6.0f} KiB", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev screenshots", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="only these; all of them if none is named")
    names = parser.parse_args().names
    shots = [shot for shot in SHOTS if not names or shot.name in names]
    with TemporaryDirectory(prefix="simpletuner-") as folder, running_console(World(Path(folder))) as console:
        asyncio.run(take_all(console, shots))
    return 0


if __name__ == "__main__":
    sys.exit(main())
