"""Serves styles, scripts and images from our own origin. One name for the whole tree changes when any file does."""

import mimetypes
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable

from msgspec import Struct

from simpletuner_fleet.core.errors import NotFound
from simpletuner_fleet.http.edge.routes import PUBLIC, Call, Reply, Route
from simpletuner_fleet.web.frame.policy import POLICY

PREFIX = "/assets"
FOR_EVER = "public, max-age=31536000, immutable"
ASK_AGAIN = "no-cache"
TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
}


class Asset(Struct, frozen=True):
    body: bytes
    content_type: str


class Assets:
    """Holds the tree of static files, read once as a whole: it is small, and requests then need no disk access."""

    def __init__(self, root: Traversable) -> None:
        self._files = {path: Asset(body, content_type(path)) for path, body in _walk(root, "")}
        digest = sha256()
        for path in sorted(self._files):
            digest.update(path.encode())
            digest.update(sha256(self._files[path].body).digest())
        self.tree = digest.hexdigest()[:12]

    def url(self, path: str) -> str:
        """Returns a URL within the tree: scripts import one another by relative paths, so a page uses one tree."""
        self.get(path)
        return f"{PREFIX}/{self.tree}/{path}"

    def get(self, path: str) -> Asset:
        try:
            return self._files[path]
        except KeyError:
            raise NotFound("There is nothing at this path.") from None

    def paths(self) -> list[str]:
        return sorted(self._files)


def _walk(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    entries = []
    for entry in folder.iterdir():
        path = f"{prefix}{entry.name}"
        if entry.is_dir():
            entries += _walk(entry, f"{path}/")
        elif not entry.name.startswith("."):
            entries.append((path, entry.read_bytes()))
    return entries


def content_type(path: str) -> str:
    ending = path[path.rfind(".") :]
    return TYPES.get(ending) or mimetypes.guess_type(path)[0] or "application/octet-stream"


ASSETS = Assets(files("simpletuner_fleet.web") / "static")


async def asset(call: Call[None]) -> Reply:
    """Serves a file. A tab left open over an update gets the present one, which it must not cache for good."""
    file = ASSETS.get(call.path["path"])
    cache_control = FOR_EVER if call.path["tree"] == ASSETS.tree else ASK_AGAIN
    return Reply(body=file.body, content_type=file.content_type, headers=_headers(cache_control))


async def favicon(call: Call[None]) -> Reply:
    file = ASSETS.get("icon.svg")
    return Reply(body=file.body, content_type=file.content_type, headers=_headers(ASK_AGAIN))


def _headers(cache_control: str) -> dict[str, str]:
    """Returns the headers, with a policy: a web worker's script obeys the one it came with, not its page's."""
    return {"cache-control": cache_control, "content-security-policy": POLICY}


ROUTES = (
    Route("GET", PREFIX + "/{tree}/{path}", asset, PUBLIC, summary="A file of the console", rest=True),
    Route("GET", "/favicon.ico", favicon, PUBLIC, summary="The console's mark"),
)
