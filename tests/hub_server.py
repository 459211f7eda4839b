"""A small Hugging Face Hub: it makes repositories, decides what is large, takes parts, and refuses as the real one does.

`./dev real-trainer publishes` holds it to the Hub's own client.
"""

import base64
import hashlib
import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.quiet_server import QuietServer

TOKEN, USER = "hf_right", "someone"
LARGE_BYTES = 1000
PART_BYTES = 40_000
"""Whatever is larger goes to the LFS storage in parts of this size."""


class HubServer:
    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.objects: dict[str, bytes] = {}
        self.parts: dict[tuple[str, int], bytes] = {}
        self.asked: Counter[str] = Counter()
        self.commits: list[str] = []
        self.branches: dict[str, set[str]] = {}
        self.makes_repositories = True
        self.troubles: list[tuple[int, dict[str, str]]] = []
        """Answered first, one after the other, whatever is asked."""
        self.trouble_said = "trouble"
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                self._do()

            def do_POST(self) -> None:
                self._do()

            def do_PUT(self) -> None:
                self._do()

            def _do(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                said = {name.title(): value for name, value in self.headers.items()}
                status, answer, headers = hub.answer(self.command, self.path, said, body)
                content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        self._server = QuietServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, Any, dict[str, str]]:
        self.asked[f"{method} {path.split('?')[0]}"] += 1
        if self.troubles:
            status, said = self.troubles.pop(0)
            return status, {"error": self.trouble_said}, said
        if path.startswith("/storage/"):
            assert "Authorization" not in headers, "a signed address takes no token"
            return self._store(path, body)
        if headers.get("Authorization") != f"Bearer {TOKEN}":
            return (
                401,
                {"error": "Invalid credentials"},
                {"x-error-message": "Invalid credentials in Authorization header"},
            )
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}, {}
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        repo = next((name for name in self.repositories if f"/{name}" in path), None)
        if repo is None:
            return 404, {"error": "Repository not found"}, {}
        return self._of_repository(repo, path, headers, body)

    def _of_repository(
        self, repo: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, Any, dict[str, str]]:
        if path == f"/api/models/{repo}":
            return 200, {"id": repo}, {}
        if f"/api/models/{repo}/branch/" in path:
            new = path.rpartition("/")[2] not in self.branches[repo]
            self.branches[repo].add(path.rpartition("/")[2])
            return (200, {}, {}) if new else (409, {"error": "Reference already exists"}, {})
        if "/preupload/" in path:
            return 200, {"files": [self._mode(one) for one in json.loads(body)["files"]]}, {}
        if path.endswith(".git/info/lfs/objects/batch"):
            assert headers["Accept"] == "application/vnd.git-lfs+json"
            return (
                200,
                {
                    "transfer": "multipart",
                    "objects": [self._batch(one) for one in json.loads(body)["objects"]],
                },
                {},
            )
        if path == f"/{repo}.git/verify":
            return (200, {}, {}) if json.loads(body)["oid"] in self.objects else (404, {}, {})
        if "/commit/" in path:
            if path.rpartition("/")[2] not in self.branches[repo]:
                return 404, {"error": "Invalid rev id"}, {"x-error-code": "RevisionNotFound"}
            return self._commit(repo, headers, body)
        return 404, {}, {}

    def _create(self, asked: dict[str, Any]) -> tuple[int, Any, dict[str, str]]:
        if not self.makes_repositories:
            return 403, {"error": "You don't have the rights to create a model under this namespace"}, {}
        name = f"{asked.get('organization') or USER}/{asked['name']}"
        if name in self.repositories:
            return 409, {"error": "You already created this model repo", "url": f"{self.url}/{name}"}, {}
        self.repositories[name] = {}
        self.branches[name] = {"main"}
        # Older clients and ours say the one, newer clients the other.
        self.private[name] = asked.get("private", asked.get("visibility") == "private")
        return 200, {"url": f"{self.url}/{name}"}, {}

    def _mode(self, file: dict[str, Any]) -> dict[str, Any]:
        assert len(base64.b64decode(file["sample"])) == min(512, file["size"])
        large = file["size"] > LARGE_BYTES or file["path"].endswith(".safetensors")
        return {"path": file["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}

    def _batch(self, one: dict[str, Any]) -> dict[str, Any]:
        oid, size = one["oid"], one["size"]
        if oid in self.objects:
            return {**one}
        repo = next(iter(self.repositories))
        verify = {"href": f"{self.url}/{repo}.git/verify", "header": {}}
        if size <= PART_BYTES:
            upload: dict[str, Any] = {"href": f"{self.url}/storage/{oid}?signed=1", "header": {}}
        else:
            count = -(-size // PART_BYTES)
            addresses = {f"{n + 1:05d}": f"{self.url}/storage/{oid}/{n + 1}?signed=1" for n in range(count)}
            upload = {
                "href": f"{self.url}/storage/{oid}/complete",
                "header": {"chunk_size": str(PART_BYTES), **addresses},
            }
        return {**one, "actions": {"upload": upload, "verify": verify}}

    def _store(self, path: str, body: bytes) -> tuple[int, Any, dict[str, str]]:
        words = path.split("?")[0].split("/")[2:]
        if words[-1] == "complete":
            reported = json.loads(body)
            whole = b"".join(self.parts[words[0], part["partNumber"]] for part in reported["parts"])
            assert all(part["etag"] for part in reported["parts"])
            return self._keep(words[0], whole)
        if len(words) == 2:
            self.parts[words[0], int(words[1])] = body
            return 200, b"", {"ETag": f'"{hashlib.md5(body).hexdigest()}"'}
        return self._keep(words[0], body)

    def _keep(self, oid: str, whole: bytes) -> tuple[int, Any, dict[str, str]]:
        if hashlib.sha256(whole).hexdigest() != oid:
            return 400, {"error": "digest"}, {}
        self.objects[oid] = whole
        return 200, {}, {}

    def _commit(self, repo: str, headers: dict[str, str], body: bytes) -> tuple[int, Any, dict[str, str]]:
        assert headers["Content-Type"] == "application/x-ndjson"
        lines = [json.loads(line) for line in body.splitlines()]
        assert lines[0]["key"] == "header"
        files: dict[str, bytes] = {}
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "lfsFile":
                if not value["size"] or value["oid"] not in self.objects:
                    return 400, {"error": "lfs object is missing"}, {}
                files[value["path"]] = self.objects[value["oid"]]
            else:
                files[value["path"]] = base64.b64decode(value["content"])
        self.repositories[repo] |= files
        self.commits.append(lines[0]["value"]["summary"])
        oid = f"c{len(self.commits)}"
        return (
            200,
            {"success": True, "commitOid": oid, "commitUrl": f"{self.url}/{repo}/commit/{oid}"},
            {},
        )
