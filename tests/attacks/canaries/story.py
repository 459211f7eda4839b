"""A fleet in which everything happens that has to do with secrets: people, jobs that print them, publishing, mistakes."""

import sys
from collections.abc import Iterator
from typing import Any

import httpx2
from msgspec import Struct, field

from devtools.canaries import Sighting, seen_in, seen_in_processes
from simpletuner_fleet.web import routes as web_routes
from tests.e2e.kit import World, watching
from tests.e2e.processes import wait_until
from tests.hub_server import TOKEN as HUB_TOKEN
from tests.hub_server import HubServer

PASSWORD = "canary plum kettle 71 fog"
MISTYPED = "canary plum kettle 72 fog"
HF, WANDB, REFUSED_BY_HUB = (
    "hf_canary0123456789abcdef",
    "wandbcanary9876543210fedcba",
    "hf_canaryrefused5555555555",
)
IN_A_MISTAKE = "canaryvalue4444444444"
PRINTS_ALL = """
import os, pathlib, sys, time
print(dict(os.environ), flush=True)
print("backwards", os.environ["SIMPLETUNER_UPLOAD_TOKEN"][::-1], flush=True)
pathlib.Path(os.environ["SIMPLETUNER_OUTPUT_DIR"], "model.safetensors").write_bytes(b"weights")
while not os.path.exists(sys.argv[2]):
    time.sleep(0.02)
sys.exit(int(sys.argv[1]))
"""
KEY_FILES = ("secrets.key", "audit.key")
PATHS = (
    *(
        "/api/secrets",
        "/api/audit?limit=500",
        "/api/audit/export",
        "/api/jobs",
        "/api/queue",
        "/api/admin/workers",
    ),
    *("/api/admin/users", "/api/admin/tokens", "/api/configs", "/api/whoami", "/api/me", "/metrics"),
)
OF_A_JOB = ("", "/attempts", "/events", "/logs", "/explain", "/artifacts", "/publication", "/metrics")


class SecretStory(Struct):
    """What was seen and kept while it happened."""

    canaries: dict[str, str | bytes] = field(default_factory=dict)
    answers: dict[str, bytes] = field(default_factory=dict)
    in_processes: set[Sighting] = field(default_factory=set)

    def seen_in_answers(self) -> set[Sighting]:
        return {
            sighting
            for place, content in self.answers.items()
            for sighting in seen_in(content, place, self.canaries)
        }


def play(world: World) -> SecretStory:
    """The whole story; the programs still run when it is over."""
    hub = HubServer()
    story = SecretStory()
    try:
        world.start_server(SIMPLETUNER_HUB_URL=hub.url)
        story.canaries["admin token"] = world.admin_token
        with watching(lambda: story.in_processes.update(seen_in_processes(dict(story.canaries))), 0.25):
            session = people(world, story)
            jobs = work(world, story)
            mistakes(world)
            publish(world, jobs[0], hub)
            commands(world, story)
        look_at_everything(world, story, session, jobs)
    finally:
        hub.close()
    for name in KEY_FILES:
        story.canaries[name] = (world.home / name).read_bytes().strip()
    return story


def people(world: World, story: SecretStory) -> httpx2.Client:
    """A user who mistypes the password once, and a token of an admin's."""
    story.canaries |= {"password": PASSWORD, "mistyped password": MISTYPED}
    world.post("/api/admin/users", {"name": "ann", "role": "admin", "password": PASSWORD})
    browser = httpx2.Client(base_url=world.url, headers={"Sec-Fetch-Site": "same-origin"}, trust_env=False)
    assert browser.post("/api/login", json={"name": "ann", "password": MISTYPED}).status_code == 401
    assert browser.post("/api/login", json={"name": "ann", "password": PASSWORD}).status_code == 200
    (story.canaries["session"],) = browser.cookies.values()
    made = world.post("/api/admin/tokens", {"name": "ci", "permissions": ["jobs.read"]})
    story.canaries["API token"] = made["token"]
    return browser


def work(world: World, story: SecretStory) -> list[str]:
    """A job that ends well and one that fails; both print all that they have."""
    story.canaries |= {"HF secret": HF, "W&B secret": WANDB, "secret the Hub refuses": REFUSED_BY_HUB}
    for name, value in (("hf", HF), ("wandb", WANDB), ("refused", REFUSED_BY_HUB), ("hub", HUB_TOKEN)):
        assert world.call("PUT", f"/api/secrets/{name}", {"value": value}).is_success
    by_environment = world.start_worker("by-environment")
    by_file = world.create_worker("by-file")
    story.canaries |= {"worker's token": by_environment.token, "other worker's token": by_file.token}
    by_file.environment.pop("SIMPLETUNER_WORKER_TOKEN")
    file = world.folder / "worker_token"
    file.touch(0o600)
    file.write_text(by_file.token)
    words = ("--orchestrator-url", world.url, "--name", "by-file", "--work-dir", str(by_file.work_dir))
    by_file.start(*words, "--worker-token-file", str(file), "--persistent")
    by_file.becomes("idle")
    jobs = []
    for exit_code in (0, 1):
        gate = world.gate()
        config = {
            **world.command(sys.executable, "-c", PRINTS_ALL, str(exit_code), str(gate)),
            "secrets": {"HF_TOKEN": "hf", "WANDB_API_KEY": "wandb"},
        }
        job_id = world.submit(config)
        line = wait_until(lambda job=job_id: _line_of(world, job), "the job has printed")  # type: ignore[misc]
        story.canaries[f"upload token {exit_code}"] = line[::-1]
        story.in_processes |= seen_in_processes(story.canaries)
        gate.touch()
        world.becomes(job_id, "failed" if exit_code else "completed")
        jobs.append(job_id)
    return jobs


def _line_of(world: World, job_id: str) -> str:
    log = world.call("GET", f"/api/jobs/{job_id}/logs").text
    return log.partition("backwards ")[2].partition("\n")[0]


def mistakes(world: World) -> None:
    """Secrets in the wrong place, as people send them."""
    headers = {"authorization": f"Bearer {world.admin_token}", "content-type": "application/json"}
    broken = f'{{"value": "{IN_A_MISTAKE}'.encode()
    for body in (broken, f'{{"walue": "{IN_A_MISTAKE}"}}'.encode(), f'"{IN_A_MISTAKE}"'.encode()):
        world.client.put(f"{world.url}/api/secrets/oops", content=body, headers=headers)
    world.client.get(f"{world.url}/api/jobs", headers={"authorization": f"Bearer {IN_A_MISTAKE}"})
    world.client.get(f"{world.url}/api/jobs", headers={"x-worker-token": f"wt_{IN_A_MISTAKE}"})
    world.client.post(
        f"{world.url}/api/workers/heartbeat", json={}, headers={"x-worker-token": f"wt_{IN_A_MISTAKE}"}
    )


def publish(world: World, job_id: str, hub: HubServer) -> None:
    """Once with a token that the Hub does not take, once with one that it does."""
    wait_until(lambda: world.get(f"/api/jobs/{job_id}/artifacts")["manifests"], "the model is stored")
    for secret, state in (("refused", "failed"), ("hub", "published")):
        world.post(f"/api/jobs/{job_id}/publish", {"to": "hf://someone/cats", "secret": secret})
        wait_until(
            lambda wanted=state: world.get(f"/api/jobs/{job_id}/publication")["state"] == wanted,  # type: ignore[misc]
            f"the publication is {state}",
        )
    assert hub.repositories["someone/cats"]


def commands(world: World, story: SecretStory) -> None:
    for words in (
        *(("doctor",), ("doctor", "server"), ("doctor", "--json"), ("status",), ("workers", "list")),
        *(
            ("secrets", "list"),
            ("tokens", "list"),
            ("users", "list"),
            ("audit", "list"),
            ("jobs", "list", "--json"),
        ),
    ):
        done = world.cli(*words)
        story.answers[f"simpletuner {' '.join(words)}"] = (done.stdout + done.stderr).encode()


def look_at_everything(world: World, story: SecretStory, browser: httpx2.Client, jobs: list[str]) -> None:
    paths = [*PATHS, *(f"/api/jobs/{job}{more}" for job in jobs for more in OF_A_JOB)]
    for path in paths:
        story.answers[f"GET {path}"] = world.call("GET", path).content
    for row in web_routes.ROUTES:
        for path in _page_paths(row.path, jobs, world) if row.method == "GET" else ():
            story.answers[f"page {path}"] = browser.get(path, headers={"accept": "text/html"}).content
    browser.close()


def _page_paths(path: str, jobs: list[str], world: World) -> Iterator[str]:
    if "{" not in path:
        yield path
    elif path.startswith("/jobs/{id}") and path.count("{") == 1:
        yield from (path.replace("{id}", job) for job in jobs)
    elif path.startswith("/admin/workers/{id}") and path.count("{") == 1:
        workers: list[Any] = world.get("/api/admin/workers")["workers"]
        yield from (path.replace("{id}", str(one.get("id") or one.get("worker_id"))) for one in workers)
