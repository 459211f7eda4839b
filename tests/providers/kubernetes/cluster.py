"""A small, strict Kubernetes: a real HTTPS server that takes what the published schemas take, and refuses as the real one.

It has the API of Jobs, Secrets, pods and events, roles, pages of lists, dry runs, finalizers and owners. Its controllers and
its kubelet move when a test says so, and it fails in the ways a test asks for.
"""

import base64
import json
import ssl
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.e2e.certificates import own_certificate
from tests.providers.kubernetes.schema import faults_of_deleting, faults_of_form, faults_of_sense
from tests.quiet_server import QuietServer

NAMESPACE, TOKEN = "gpus", "eyJhbGciOi.orchestrator.token"
ALLOWED = {
    ("create", "jobs"),
    ("get", "jobs"),
    ("list", "jobs"),
    ("delete", "jobs"),
    ("create", "secrets"),
    ("create", "services"),
    ("list", "pods"),
    ("get", "pods/log"),
    ("list", "events"),
}
"""What docs/machines.md asks for, and the chart grants."""
NOW = "2026-11-16T12:00:00Z"
FIELDS = {
    "pods": {"status.phase": "Pending"},
    "events": {"involvedObject.kind": "", "involvedObject.name": "", "reason": ""},
    "jobs": {},
}
Answer = tuple[int, Any]


class Refusal(Exception):
    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason

    def body(self) -> dict[str, Any]:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            "code": self.status,
        }


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.certificate, key = own_certificate(folder)
        self.allowed = set(ALLOWED)
        self.objects: dict[str, dict[str, dict[str, Any]]] = {
            "jobs": {},
            "secrets": {},
            "services": {},
            "pods": {},
            "events": {},
        }
        self.asked: list[tuple[str, str]] = []
        self.logs: dict[str, str] = {}
        self.page_limit = 500
        self.busy = 0
        """So many calls are answered with 429."""
        self.lists_forgotten = 0
        """So many following pages are answered with 410."""
        self.lists_end = True
        """Else every page names the one after it, for ever the same."""
        self.after: str = ""
        """What becomes of the next answer to a POST that was done: lost, or 500, or a proxy's page."""
        self.no_pods: str = ""
        """Why the controller makes none."""
        self._pages: dict[str, list[dict[str, Any]]] = {}
        self._lock = threading.RLock()
        self._server = QuietServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, key)
        context.load_verify_locations(self.certificate)
        context.verify_mode = ssl.CERT_OPTIONAL
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.url = f"https://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def kubeconfig(self, **user: str) -> str:
        authority = base64.b64encode(self.certificate.read_bytes()).decode()
        cluster = {"server": self.url, "certificate-authority-data": authority}
        return json.dumps(
            {
                "kind": "Config",
                "apiVersion": "v1",
                "preferences": {},
                "clusters": [{"name": "c", "cluster": cluster}],
                "users": [{"name": "u", "user": user or {"token": TOKEN}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": NAMESPACE}}],
                "current-context": "x",
            }
        )

    # What a test lets the cluster's own parts do.

    def control(self) -> None:
        """The Job controller makes the pods that are missing; the garbage collector takes what nobody owns."""
        with self._lock:
            for name, job in self.objects["jobs"].items():
                ended = job["status"].get("conditions")
                if job["spec"].get("suspend") or ended or "deletionTimestamp" in job["metadata"]:
                    continue
                if self.no_pods:
                    about = {"kind": "Job", "name": name}
                    event = {"involvedObject": about, "reason": "FailedCreate", "message": self.no_pods}
                    self.objects["events"][f"{name}.1"] = {"metadata": {"name": f"{name}.1"}, **event}
                elif not job["status"].get("active"):
                    self._make_pod(name, job)

    def _make_pod(self, name: str, job: dict[str, Any]) -> None:
        """One, or with Indexed as many as there are completions; each is told its own number."""
        template, is_indexed = job["spec"]["template"], job["spec"].get("completionMode") == "Indexed"
        labels = {**template["metadata"]["labels"], "job-name": name, "batch.kubernetes.io/job-name": name}
        for index in range(job["spec"]["completions"]):
            pod_name = f"{name}-{index}-x7k2p" if is_indexed else f"{name}-x7k2p"
            annotations = {"batch.kubernetes.io/job-completion-index": str(index)} if is_indexed else {}
            hostname = {"hostname": f"{name}-{index}"} if is_indexed else {}
            self.objects["pods"][pod_name] = {
                "metadata": {
                    "name": pod_name,
                    "labels": labels,
                    "annotations": annotations,
                    "ownerReferences": [{"uid": job["metadata"]["uid"]}],
                },
                "spec": {**template["spec"], **hostname},
                "status": {"phase": "Pending"},
            }
        job["status"]["active"] = job["spec"]["completions"]

    def pod(self, name: str) -> dict[str, Any]:
        return self.objects["pods"][f"{name}-x7k2p"]

    def end(self, name: str, kind: str = "Complete", **condition: str) -> None:
        with self._lock:
            job = self.objects["jobs"][name]
            job["status"] = {"conditions": [{"type": kind, "status": "True", **condition}]}

    def collect(self) -> None:
        with self._lock:
            for name, job in list(self.objects["jobs"].items()):
                if "deletionTimestamp" in job["metadata"]:
                    self._forget_owned("pods", job["metadata"]["uid"])
                    del self.objects["jobs"][name]
            uids = {job["metadata"]["uid"] for job in self.objects["jobs"].values()}
            for kind in ("pods", "secrets", "services"):
                for name, thing in list(self.objects[kind].items()):
                    if not {owner["uid"] for owner in thing["metadata"].get("ownerReferences", ())} & uids:
                        del self.objects[kind][name]

    def _forget_owned(self, kind: str, uid: str) -> None:
        for name, thing in list(self.objects[kind].items()):
            if any(owner["uid"] == uid for owner in thing["metadata"].get("ownerReferences", ())):
                del self.objects[kind][name]

    # The API.

    def answer(self, method: str, target: str, headers: Any, body: bytes, user: str) -> Answer:
        with self._lock:
            parts = urlsplit(target)
            self.asked.append((method, target))
            if self.busy:
                self.busy -= 1
                raise Refusal(429, "TooManyRequests", "Too many requests, please try again later.")
            if headers.get("Authorization") != f"Bearer {TOKEN}" and user != "orchestrator.example.com":
                raise Refusal(401, "Unauthorized", "Unauthorized")
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            kind, name, sub = self._resource(parts.path)
            verb = {"POST": "create", "DELETE": "delete"}.get(method, "get" if name else "list")
            if (verb, f"{kind}/{sub}" if sub else kind) not in self.allowed:
                raise Refusal(
                    403, "Forbidden", f'{kind} is forbidden: User "u" cannot {verb} resource "{kind}"'
                )
            if method == "POST":
                return self._create(kind, query, headers, body)
            if method == "DELETE":
                return self._delete(kind, name, body)
            if method != "GET":
                raise Refusal(
                    405, "MethodNotAllowed", "the server does not allow this method on the resource"
                )
            if sub:
                return self._log(name, query)
            return (200, self._existing(kind, name)) if name else self._list(kind, query)

    def _resource(self, path: str) -> tuple[str, str, str]:
        words = path.strip("/").split("/")
        heads = {
            "jobs": ["apis", "batch", "v1"],
            "secrets": ["api", "v1"],
            "services": ["api", "v1"],
            "pods": ["api", "v1"],
            "events": ["api", "v1"],
        }
        for kind, head in heads.items():
            base = [*head, "namespaces"]
            if words[: len(base)] == base and words[len(base) + 1 : len(base) + 2] == [kind]:
                rest = words[len(base) + 2 :]
                name, sub = [*rest, "", ""][:2]
                return kind, name, sub
        raise Refusal(404, "NotFound", "the server could not find the requested resource")

    def _existing(self, kind: str, name: str) -> dict[str, Any]:
        if name not in self.objects[kind]:
            raise Refusal(404, "NotFound", f'{kind} "{name}" not found')
        return self.objects[kind][name]

    def _create(self, kind: str, query: dict[str, str], headers: Any, body: bytes) -> Answer:
        if headers.get("Content-Type") != "application/json":
            raise Refusal(415, "UnsupportedMediaType", "the body of the request was in an unknown format")
        if query.keys() - {"dryRun", "fieldValidation"} or query.get("dryRun", "All") != "All":
            raise Refusal(400, "BadRequest", f"unknown options {query}")
        thing = json.loads(body)
        if (thing.get("kind"), kind) not in {
            ("Job", "jobs"),
            ("Secret", "secrets"),
            ("Service", "services"),
        }:
            raise Refusal(400, "BadRequest", f"the object provided is unrecognized: {thing.get('kind')}")
        if wrong := faults_of_form(thing):
            raise Refusal(400, "BadRequest", f"strict decoding error: {', '.join(wrong)}")
        if wrong := faults_of_sense(thing):
            raise Refusal(422, "Invalid", f"{thing['kind']} is invalid: {', '.join(wrong)}")
        name = thing["metadata"]["name"]
        if name in self.objects[kind]:
            raise Refusal(409, "AlreadyExists", f'{kind} "{name}" already exists')
        thing["metadata"] |= {"uid": str(uuid.uuid4()), "namespace": NAMESPACE, "creationTimestamp": NOW}
        if kind == "jobs":
            thing["status"] = {}
        data = thing.pop("stringData", {})
        if kind == "secrets":
            thing["data"] = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
        if "dryRun" not in query:
            self.objects[kind][name] = thing
            self._fail_afterwards()
        return 201, thing

    def _fail_afterwards(self) -> None:
        after, self.after = self.after, ""
        if after == "lost":
            raise ConnectionAbortedError
        if after == "500":
            raise Refusal(500, "InternalError", "etcdserver: request timed out")
        if after == "proxy":
            raise Refusal(502, "", "<html>Bad Gateway</html>")

    def _delete(self, kind: str, name: str, body: bytes) -> Answer:
        options = json.loads(body or b"{}")
        if wrong := faults_of_deleting(options):
            raise Refusal(400, "BadRequest", ", ".join(wrong))
        thing = self._existing(kind, name)
        if options.get("propagationPolicy") == "Foreground":
            thing["metadata"] |= {"deletionTimestamp": NOW, "finalizers": ["foregroundDeletion"]}
            return 200, thing
        del self.objects[kind][name]
        return 200, {"kind": "Status", "status": "Success"}

    def _list(self, kind: str, query: dict[str, str]) -> Answer:
        token = query.get("continue", "")
        if not self.lists_end:
            page = self._chosen(kind, query)
            return 200, {"kind": "List", "apiVersion": "v1", "metadata": {"continue": "next"}, "items": page}
        if token and (self.lists_forgotten or token not in self._pages):
            self.lists_forgotten = max(0, self.lists_forgotten - 1)
            raise Refusal(410, "Expired", "The provided continue parameter is too old")
        left = self._pages.pop(token) if token else self._chosen(kind, query)
        limit = min(int(query.get("limit", "500")), self.page_limit)
        following = ""
        if len(left) > limit:
            following = uuid.uuid4().hex
            self._pages[following] = left[limit:]
        metadata = {"resourceVersion": "7", **({"continue": following} if following else {})}
        return 200, {"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": left[:limit]}

    def _chosen(self, kind: str, query: dict[str, str]) -> list[dict[str, Any]]:
        labels = dict(word.split("=") for word in query.get("labelSelector", "").split(",") if word)
        fields = dict(word.split("=") for word in query.get("fieldSelector", "").split(",") if word)
        if unknown := fields.keys() - FIELDS[kind].keys():
            raise Refusal(400, "BadRequest", f"field label not supported: {unknown}")
        return [
            thing
            for _, thing in sorted(self.objects[kind].items())
            if labels.items() <= thing["metadata"].get("labels", {}).items()
            and all(_field(thing, path) == value for path, value in fields.items())
        ]

    def _log(self, name: str, query: dict[str, str]) -> Answer:
        pod = self._existing("pods", name)
        if query.keys() - {"container", "tailLines", "limitBytes"} or query.get("container") != "worker":
            raise Refusal(400, "BadRequest", f"unknown options {query}")
        if pod["status"]["phase"] == "Pending":
            raise Refusal(400, "BadRequest", f'container "worker" in pod "{name}" is waiting to start')
        return 200, self.logs.get(name, "")

    def _handler(cluster: "Cluster") -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 30

            def _do(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                names = self.connection.getpeercert() or {}
                user = dict(pair for part in names.get("subject", ()) for pair in part).get("commonName", "")
                try:
                    status, answer = cluster.answer(self.command, self.path, self.headers, body, user)
                except ConnectionAbortedError:
                    self.close_connection = True
                    return
                except Refusal as refusal:
                    status = refusal.status
                    answer = refusal.body() if refusal.reason else str(refusal)
                text = answer if isinstance(answer, str) else json.dumps(answer)
                self.send_response(status)
                self.send_header(
                    "Content-Type", "text/plain" if isinstance(answer, str) else "application/json"
                )
                if status == 429:
                    self.send_header("Retry-After", "1")
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            do_GET = do_POST = do_DELETE = do_PATCH = _do

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def _field(thing: dict[str, Any], path: str) -> Any:
    value: Any = thing
    for part in path.split("."):
        value = value.get(part, {}) if isinstance(value, dict) else {}
    return value


@contextmanager
def cluster_at(folder: Path) -> Iterator[Cluster]:
    made = Cluster(folder)
    try:
        yield made
    finally:
        made.close()
