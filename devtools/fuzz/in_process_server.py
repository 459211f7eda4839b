"""A server with everything in it, in this process: a real SQLite, real files, every kind of caller, jobs in every state."""

import asyncio
import hashlib
import hmac
import json
import shutil
from pathlib import Path
from typing import Any

from devtools.fuzz.chance import Chance
from devtools.fuzz.document import Known
from devtools.fuzz.line import PATIENCE_S, Line, LineAnswer
from simpletuner_fleet.blobs.folder import FolderBlobs
from simpletuner_fleet.core.configs.datasets import canonical, id_of, prefixed_id
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.training.checkpoint import FileEntry
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.engine.streams import StreamHub
from simpletuner_fleet.http.access.credentials import remembered_credentials
from simpletuner_fleet.http.access.limits import Rate, RateLimits
from simpletuner_fleet.http.access.sessions import COOKIE
from simpletuner_fleet.http.api.deps import Deps, LoginDoor
from simpletuner_fleet.http.application import build_api
from simpletuner_fleet.http.edge.edge import Edge, EdgeSettings
from simpletuner_fleet.http.server.serving import HttpServer
from simpletuner_fleet.orchestrator.machines.provisioner import Provisioner
from simpletuner_fleet.orchestrator.people import api_tokens
from simpletuner_fleet.orchestrator.people.passwords import Cost, Passwords
from simpletuner_fleet.orchestrator.sign_in.ways import SignIn, SignInSettings
from simpletuner_fleet.orchestrator.workers import attendance
from simpletuner_fleet.ports import Store
from simpletuner_fleet.store.sealing import SealedVault
from simpletuner_fleet.store.sqlite import SqliteStore
from simpletuner_fleet.web import routes as web_routes
from simpletuner_fleet.web.frame.problems import problem_page

Headers = dict[str, str]
Json = dict[str, Any]
HOST = "127.0.0.1:8001"
PASSWORD = "plum kettle 7 fog"
CPU_JOB = {"trainer": "command", "settings": {"command": ["true"]}, "resources": {"gpus": 0}}
MODEL = b"a model" * 100
SETTLE_S = 0.05
ENDLESS = Rate(1e9, 1e9)
NO_LIMITS = RateLimits(
    worker=ENDLESS,
    user=ENDLESS,
    public=ENDLESS,
    failed_proof=ENDLESS,
    noted_failure=ENDLESS,
    noted_failures_overall=ENDLESS,
)
USUAL_POLICY = Policy()


class Refused(Exception):
    """What was asked for is not to be had in this server, as it is now."""


class ServerClock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.at = 1_800_000_000.0

    def now(self) -> float:
        return self.at


class SeededIds:
    """The same ids in every run of one seed."""

    def __init__(self, seed: int) -> None:
        self._chance = Chance(seed)
        self._secret = self._chance.randbytes(32)

    def new(self, prefix: str) -> str:
        return f"{prefix}_{tokens.random_digits(self._chance.randbytes(16))[:12]}"

    def token(self, prefix: str) -> str:
        return tokens.make(prefix, self._chance.randbytes(tokens.SECRET_BYTES))

    def derived_token(self, prefix: str, of: str) -> str:
        return tokens.make(prefix, hmac.digest(self._secret, f"{prefix}:{of}".encode(), hashlib.sha256))


class InProcessWorker:
    """One worker and the offers it was made."""

    def __init__(self, server: "InProcessServer", created: Json) -> None:
        self.server = server
        self.id = str(created["worker_id"])
        self.name = str(created["name"])
        self.headers = {"x-worker-token": str(created["token"])}
        self.seq = 0

    async def say(self, path: str, body: Json) -> Json:
        return await self.server.good("POST", f"/api/workers/{path}", body, self.headers)

    async def join(self, max_jobs: int = 500, gpus: int = 0) -> None:
        self.seq += 1
        has = [{"index": at, "uuid": f"GPU-{self.id}-{at}", "name": "NVIDIA A100"} for at in range(gpus)]
        body = {
            "name": self.name,
            "persistent": True,
            "gpus": has,
            "trainers": ["command"],
            "saves_on_request": ["command"],
            "validates_on_request": ["command"],
            "max_jobs": max_jobs,
        }
        await self.say("register", {**body, "attempts": [], "incarnation": "i-1", "seq": self.seq})
        token_hash = tokens.hashed(self.headers["x-worker-token"])
        await attendance.stream_opened(self.server.fleet, self.id, "127.0.0.1", token_hash=token_hash)

    async def offers(self) -> list[Json]:
        return list((await self.say("heartbeat", {"worker_id": self.id, "attempts": None}))["jobs"])

    async def offer_of(self, job_id: str) -> Json:
        for one in await self.offers():
            if one["job_id"] == job_id:
                return dict(one)
        raise Refused(f"{self.name} was not offered {job_id}")

    async def accept(self, offer: Json) -> None:
        self.seq += 1
        await self.say(f"job/{offer['job_id']}/accept", {"epoch": offer["epoch"], "seq": self.seq})

    async def report(self, offer: Json, status: str, **more: Any) -> None:
        self.seq += 1
        body = {
            "status": status,
            "epoch": offer["epoch"],
            "attempt": offer["attempt"],
            "seq": self.seq,
            **more,
        }
        await self.say(f"job/{offer['job_id']}/status", body)

    async def upload(self, offer: Json, data: bytes) -> None:
        """One artifact of one file, whole and named."""
        base, sha256 = f"job/{offer['job_id']}", hashlib.sha256(data).hexdigest()
        query = f"epoch={offer['epoch']}&offset=0&size={len(data)}"
        headers = {**self.headers, "content-type": "application/octet-stream"}
        answer = await self.server.ask("PUT", f"/api/workers/{base}/objects/{sha256}?{query}", data, headers)
        if answer.status == 413:  # somebody has set a quota to next to nothing
            raise Refused(f"{base}: {answer}")
        assert answer.status == 200, answer
        file = {"path": "model.safetensors", "size": len(data), "sha256": sha256}
        manifest = {"kind": "artifact", "name": "output", "step": None, "files": [file]}
        await self.say(f"{base}/manifests", {"epoch": offer["epoch"], "manifest": manifest})


class InProcessServer:
    def __init__(
        self,
        folder: Path,
        seed: int,
        policy: Policy = USUAL_POLICY,
        store: Store | None = None,
        sign_in: SignInSettings | None = None,
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.clock = ServerClock()
        self.store = store or SqliteStore(folder / "fleet.db")
        self.blobs = FolderBlobs(folder / "storage")
        hub = StreamHub()
        ids = SeededIds(seed)
        self.admin_token = ids.token("st")
        vault = SealedVault.at(folder / "secrets.key")
        self.index = FleetIndex()
        self.fleet = Fleet(self.store, self.index, self.clock, ids, hub, policy, vault)
        self.deps = Deps(
            fleet=self.fleet,
            hub=hub,
            blobs=self.blobs,
            credentials=remembered_credentials(self.fleet, hub),
            passwords=Passwords(Cost(memory_kib=64)),
            login_door=LoginDoor(self.clock.now),
            sign_in=SignIn(sign_in, self.clock.now),
        )
        self.edge: Edge = build_api(
            self.deps, EdgeSettings(limits=NO_LIMITS), pages=web_routes.ROUTES, problem_page=problem_page
        )
        self.http_server: HttpServer = HttpServer(self.edge, 75.0)
        self.workers: dict[str, InProcessWorker] = {}
        self.known: Known = {}

    @property
    def admin(self) -> Headers:
        return {"authorization": f"Bearer {self.admin_token}"}

    async def open(self) -> "InProcessServer":
        await api_tokens.set_admin_token(self.fleet, self.admin_token)
        await self.fleet.start()
        self.deps.provisioner = self._provisioner = Provisioner(self.fleet, self.folder / "machines", {}, {})
        return self

    async def close(self) -> None:
        self.deps.stopping = True
        await self.edge.end_streams()
        await self.deps.background_tasks.finish(1.0)
        await self._provisioner.stop()
        await self.deps.sign_in.close()
        await self.store.close()
        self.blobs.close()
        shutil.rmtree(self.folder)

    async def settle(self) -> None:
        """Waits for what was begun by callers who have hung up since: writers wait in one line, and this is the last."""
        await asyncio.sleep(SETTLE_S)
        await api_tokens.set_admin_token(self.fleet, self.admin_token)

    # Calls

    async def ask(
        self,
        method: str,
        target: str,
        body: bytes | Json | None = None,
        headers: Headers | None = None,
        patience_s: float = PATIENCE_S,
    ) -> LineAnswer:
        """One request on a connection of its own. A stream is left when it has begun."""
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        line = Line(self.http_server)
        await line.send([request_bytes(method, target, content, headers or {})])
        return await line.answer(method, patience_s=patience_s)

    async def good(
        self, method: str, target: str, body: Json | None = None, headers: Headers | None = None
    ) -> Json:
        answer = await self.ask(method, target, body, self.admin if headers is None else headers)
        if 400 <= answer.status < 500:
            raise Refused(f"{method} {target}: {answer}")
        assert answer.status < 300, (method, target, answer)
        return dict(json.loads(answer.body)) if answer.body else {}

    # Who is in it

    async def user(self, name: str, role: str) -> Headers:
        """A person who has logged in, in a browser that shows pages of this server."""
        await self.good("POST", "/api/admin/users", {"name": name, "role": role, "password": PASSWORD})
        return await self.log_in(name)

    async def log_in(self, name: str) -> Headers:
        answer = await self.ask("POST", "/api/login", {"name": name, "password": PASSWORD})
        assert answer.status == 200, answer
        secret = answer.headers["set-cookie"].partition("=")[2].partition(";")[0]
        return {"cookie": f"{COOKIE}={secret}", "sec-fetch-site": "same-origin"}

    async def token(self, name: str, *permissions: str, by: Headers | None = None) -> Headers:
        body = {"name": name, "permissions": list(permissions)}
        made = await self.good("POST", "/api/admin/tokens", body, by)
        return {"authorization": f"Bearer {made['token']}"}

    async def worker(self, name: str, max_jobs: int = 500, gpus: int = 0) -> InProcessWorker:
        """It takes the jobs that ask for it by its label alone."""
        body = {"name": name, "labels": {"only": name}}
        self.workers[name] = worker = InProcessWorker(
            self, await self.good("POST", "/api/admin/workers", body)
        )
        await worker.join(max_jobs, gpus)
        return worker

    async def submit(self, by: Headers, worker: str, *, approved: bool = True, **options: Any) -> str:
        body = {"config": CPU_JOB, "target": "worker", "worker_labels": {"only": worker}, **options}
        submitted = await self.good("POST", "/api/queue/submit", body, by)
        job_id = str(submitted["job_id"])
        if approved and self.fleet.policy.require_approval and submitted["status"] == "blocked":
            await self.good("POST", f"/api/queue/{job_id}/approve")
        return job_id

    async def config(self, name: str, by: Headers) -> None:
        await self.good("PUT", f"/api/configs/{name}", CPU_JOB, by)

    async def dataset(self, name: str, by: Headers) -> str:
        content = f"a picture of {name}".encode()
        sha256 = hashlib.sha256(content).hexdigest()
        manifest = canonical([FileEntry(path="a.png", size=len(content), sha256=sha256)])
        for data in (content, manifest):
            target = f"/api/data/objects/{hashlib.sha256(data).hexdigest()}?offset=0&size={len(data)}"
            answer = await self.ask("PUT", target, data, {**by, "content-type": "application/octet-stream"})
            assert answer.status == 200, answer
        named = await self.good("POST", "/api/data", {"id": prefixed_id(id_of(manifest)), "name": name}, by)
        return str(named["id"])


def request_bytes(method: str, target: str, content: bytes, headers: Headers) -> bytes:
    lines = {"host": HOST, "content-type": "application/json", **headers}
    if content or method not in ("GET", "HEAD", "DELETE"):
        lines.setdefault("content-length", str(len(content)))
    head = f"{method} {target} HTTP/1.1\r\n" + "".join(
        f"{name}: {value}\r\n" for name, value in lines.items()
    )
    return head.encode("latin-1", "replace") + b"\r\n" + content
