"""What is sent to each route that is about a job: what its worker or its owner would send."""

import hashlib
from typing import Any
from urllib.parse import urlencode

from devtools.fuzz.in_process_server import MODEL, Headers, Json
from devtools.fuzz.job_states import MadeJob
from simpletuner_fleet.http.edge.routes import Route

NEW = b"another model"
NEW_SHA256, MODEL_SHA256 = (hashlib.sha256(data).hexdigest() for data in (NEW, MODEL))
RAW: Headers = {"content-type": "application/octet-stream"}
BODIES: dict[str, Json] = {
    "POST /api/workers/job/{id}/accept": {},
    "POST /api/workers/job/{id}/status": {"status": "failed", "exit_code": 1},
    "POST /api/workers/job/{id}/objects": {"objects": [{"sha256": NEW_SHA256, "size": len(NEW)}]},
    "POST /api/workers/job/{id}/manifests": {
        "manifest": {
            "kind": "artifact",
            "name": "output",
            "files": [{"path": "model.safetensors", "size": len(MODEL), "sha256": MODEL_SHA256}],
        }
    },
    "POST /api/workers/job/{id}/objects/{sha256}/direct": {"size": len(MODEL)},
    "POST /api/workers/job/{id}/objects/{sha256}/direct/end": {"size": len(MODEL)},
    "POST /api/workers/job/{id}/notes": {"notes": [{"id": "n", "at": 1.0, "kind": "k", "text": "t"}]},
    "POST /api/workers/job/{id}/metrics": {"first": 0, "points": []},
    "POST /api/workers/job/{id}/gpu-metrics": {"first": 0, "points": []},
    "POST /api/workers/job/{id}/logs": {"offset": 0, "data": "Zm9yZ2VkCg=="},
    "POST /api/queue/{id}/priority": {"priority": 5},
    "POST /api/jobs/{id}/tags": {"add": ["cats"]},
    "PUT /api/jobs/{id}/note": {"note": "mine"},
    "POST /api/jobs/{id}/publish": {"to": "folder://cats"},
}
QUERIES: dict[str, dict[str, Any]] = {
    "PUT /api/workers/job/{id}/objects/{sha256}": {"offset": 0, "size": len(NEW)},
    "PUT /api/workers/job/{id}/logs": {"offset": 0},
    "GET /api/jobs/{id}/logs/search": {"q": "loss"},
}


def request_for(row: Route, job: MadeJob | None, manifest: str) -> tuple[str, bytes | Json | None, Headers]:
    """Returns target, body and further headers."""
    name = f"{row.method} {row.path}"
    epoch = (
        {"epoch": job.offer["epoch"] if job and job.offer else 1}
        if row.path.startswith("/api/workers/job/")
        else {}
    )
    path = row.path.replace("{id}", job.id if job else "x_none")
    path = path.replace("{sha256}", NEW_SHA256 if row.method == "PUT" else MODEL_SHA256)
    path = (
        path.replace("{manifest_id}", manifest)
        .replace("{path}", "model.safetensors")
        .replace("{name}", "x_none")
    )
    query = {**QUERIES.get(name, {}), **(epoch if row.method == "PUT" else {})}
    target = f"{path}?{urlencode(query)}" if query else path
    if row.body is bytes:
        return target, NEW, RAW
    body = {**BODIES.get(name, {}), **(epoch if row.method == "POST" else {})}
    return target, body if row.body is not None else None, {}
