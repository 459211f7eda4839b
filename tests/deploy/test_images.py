"""The container file and the Compose file: linted and read strictly. Nothing is built here: there is no builder."""

import json
import re
import shlex
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import yaml

from simpletuner_fleet.providers.kubernetes.job import HOME, IMAGE_USER
from simpletuner_fleet.settings import GROUPS
from tests.quiet_server import QuietServer

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "Containerfile"
COMPOSE = ROOT / "deploy" / "compose.yaml"
VARIABLES = {row.env for group in GROUPS.values() for row in group}
SECRETS = {row.env for group in GROUPS.values() for row in group if row.secret}
SERVICE_KEYS = {
    *(
        "image",
        "restart",
        "environment",
        "volumes",
        "healthcheck",
        "build",
        "depends_on",
        "ports",
        "stop_grace_period",
    ),
    *("cap_drop", "security_opt", "profiles", "secrets", "shm_size", "deploy"),
    "read_only",
    "tmpfs",
}


def instructions() -> dict[str, list[tuple[str, str]]]:
    """By stage, each instruction with its words."""
    text = re.sub(
        r"\\\n\s*", "", "\n".join(line for line in FILE.read_text().split("\n") if not line.startswith("#"))
    )
    stages: dict[str, list[tuple[str, str]]] = {"": []}
    stage = ""
    for line in filter(None, text.split("\n")):
        name, _, rest = line.partition(" ")
        if name == "FROM":
            stage = rest.split()[-1]
            stages[stage] = []
        stages[stage].append((name, rest))
    return stages


def one(stage: str, name: str) -> list[str]:
    return [words for instruction, words in instructions()[stage] if instruction == name]


def compose() -> Any:
    return yaml.safe_load(COMPOSE.read_text("utf-8"))


def test_the_linter_has_nothing_to_say() -> None:
    linter = Path(sys.executable).parent / "hadolint"
    done = subprocess.run(
        [linter, "--no-color", FILE], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_both_images_run_as_nobody_in_particular_and_take_in_what_is_left_behind() -> None:
    for stage, command, home in (("server", "server", "/var/lib/simpletuner"), ("worker", "worker", HOME)):
        assert one(stage, "USER")[-1] == f"{IMAGE_USER}:{IMAGE_USER}"
        assert one(stage, "ENTRYPOINT") == ['["/usr/bin/tini", "--", "/opt/fleet/bin/simpletuner"]']
        assert one(stage, "CMD") == [f'["{command}"]']
        assert one(stage, "WORKDIR") == [home]
        assert any("tini" in run for run in one(stage, "RUN"))
        assert len(one(stage, "HEALTHCHECK")) == 1
    assert "/health/live" in one("server", "HEALTHCHECK")[0]


def test_the_health_check_asks_the_port_that_was_chosen() -> None:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    words = json.loads(one("server", "HEALTHCHECK")[0].partition("CMD ")[2])
    with QuietServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        chosen = {"SIMPLETUNER_PORT": str(server.server_address[1])}
        subprocess.run([sys.executable, *words[1:]], env=chosen, check=True, timeout=60)
        server.shutdown()
    assert asked == ["/health/live"]
    assert subprocess.run(
        [sys.executable, *words[1:]], env=chosen, check=False, capture_output=True
    ).returncode


def test_the_wheel_is_built_once_for_all_machines_and_nothing_is_made_for_one_alone() -> None:
    assert one("wheel", "FROM")[0].startswith("--platform=${BUILDPLATFORM} ")
    for stage in ("server", "worker"):
        assert "--platform" not in one(stage, "FROM")[0]
        assert not re.search(r"amd64|x86_64|arm64|aarch64", " ".join(one(stage, "RUN")))


def test_no_secret_can_be_in_a_layer() -> None:
    for stage, rows in instructions().items():
        assert not one(stage, "ADD")
        for name, words in rows:
            if name in ("ARG", "ENV"):
                assert not re.search(r"TOKEN|PASSWORD|SECRET|KEY\b", words), words
            if name == "COPY":
                assert set(words.split()) <= {
                    "requirements.lock",
                    "pyproject.toml",
                    "README.md",
                    "LICENSE",
                    "./",
                    "src",
                    "./src",
                }
    sent = (ROOT / ".dockerignore").read_text().split("\n")
    assert sent[1] == "*"
    copied = {word.removeprefix("./") for words in one("wheel", "COPY") for word in words.split()[:-1]}
    assert {line[1:] for line in sent if line.startswith("!")} == copied
    assert all((ROOT / name).exists() for name in copied)


def test_the_images_variables_are_settings() -> None:
    for stage in ("server", "worker"):
        names = [word.partition("=")[0] for words in one(stage, "ENV") for word in shlex.split(words)]
        assert {name for name in names if name.startswith("SIMPLETUNER_")} <= VARIABLES


def test_the_compose_file_refers_to_what_is_there_and_holds_no_secret() -> None:
    whole = compose()
    services = whole["services"]
    assert set(whole) == {"name", "services", "secrets", "volumes"}
    for name, service in services.items():
        assert set(service) <= SERVICE_KEYS, name
        assert set(service.get("depends_on", {})) <= set(services)
        assert set(service.get("secrets", ())) <= set(whole["secrets"])
        assert {volume.partition(":")[0] for volume in service.get("volumes", ())} <= set(whole["volumes"])
        if "build" in service:
            assert (
                COMPOSE.parent / service["build"]["context"] / service["build"]["dockerfile"]
            ).resolve() == FILE
            assert service["build"]["target"] in instructions()
        for variable, value in service.get("environment", {}).items():
            assert not variable.startswith("SIMPLETUNER_") or variable in VARIABLES, variable
            if variable in SECRETS or "PASSWORD" in variable:
                assert value.startswith("${") or "@" not in value.partition("://")[2].partition(":")[2], (
                    variable
                )
    assert services["database"]["healthcheck"]
    assert (services["server"]["read_only"], services["server"]["tmpfs"]) == (True, ["/tmp"])
    assert services["server"]["depends_on"]["database"] == {"condition": "service_healthy"}


def test_what_the_compose_file_asks_for_is_told() -> None:
    asked = set(re.findall(r"\$\{(\w+)", COMPOSE.read_text("utf-8")))
    asked |= {secret["environment"] for secret in compose()["secrets"].values()}
    page = (ROOT / "docs" / "containers.md").read_text("utf-8")
    assert [name for name in sorted(asked) if f"`{name}`" not in page] == []
