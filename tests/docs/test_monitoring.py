"""The alert rules and the dashboard ask for nothing that /metrics does not tell, and Prometheus itself understands them."""

import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from simpletuner_fleet.core.jobs.job import JobState
from simpletuner_fleet.core.placement.reasons import REASONS
from simpletuner_fleet.http.api.telemetry import ENDS
from simpletuner_fleet.storage.space import SpaceWatch
from tests.docs.debian_tools import tool
from tests.http.api_kit import GPU_CONFIG, orchestrator

FOLDER = Path(__file__).parents[2] / "docs" / "monitoring"
DOCUMENT = FOLDER.parent / "monitoring.md"
SELECTOR = re.compile(r"\b((?:simpletuner|process|python)_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
GROUPED = re.compile(r"\b(?:by|without)\s*\(([^)]*)\)")
VALUES: dict[tuple[str, str], set[str]] = {
    ("simpletuner_jobs", "state"): {str(state) for state in JobState},
    ("simpletuner_attempts_ended_total", "failure"): {failure for _, failure in ENDS},
    ("simpletuner_queue_oldest_wait_seconds", "class"): {str(row.kind) for row in REASONS.values()},
}
"""Values that a label may have though the page of this test does not show them all."""


def expressions() -> Iterator[tuple[str, str]]:
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for panel in json.loads((FOLDER / "dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


ASKED = list(expressions())


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    import asyncio

    return asyncio.run(told_page(tmp_path_factory.mktemp("disk")))


async def told_page(folder: Path) -> str:
    """A server on which a bit of everything has happened."""
    async with orchestrator(space=SpaceWatch(folder)) as running:
        agent = await running.worker(gpus=2)
        await running.submit(config=GPU_CONFIG, max_retries=0)
        offer = await agent.take()
        await agent.report(offer, "failed", error="CUDA out of memory", exit_code=1)
        await running.submit(config=GPU_CONFIG, gpus=1, min_vram_gb=500)
        page: str = (await running.http.get("/metrics")).text
        return page


Told = dict[str, dict[str, set[str]]]


@pytest.fixture(scope="module")
def told_names(page: str) -> Told:
    """By the name of each series, its labels with their values."""
    names: Told = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = names.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return names


@pytest.mark.parametrize(("title", "expression"), ASKED, ids=[title for title, _ in ASKED])
def test_every_name_label_and_value_is_told(title: str, expression: str, told_names: Told) -> None:
    labels_told: set[str] = set()
    selectors = SELECTOR.findall(expression)
    assert selectors
    for name, matchers in selectors:
        assert name in told_names
        labels_told |= told_names[name].keys()
        for label, how, text in MATCHER.findall(matchers):
            assert label in told_names[name], f"{name} has no label {label}"
            values = VALUES.get((name, label), told_names[name][label])
            assert (set(text.split("|")) if "~" in how else {text}) <= values
    grouped = {word.strip() for words in GROUPED.findall(expression) for word in words.split(",")}
    assert grouped <= labels_told


@cache
def promtool() -> str:
    program = tool("promtool", "prometheus")
    if not program:
        pytest.skip("no promtool here (Debian's package prometheus), and it cannot be fetched")
    return program


def run(*arguments: Any, given: str | None = None) -> str:
    done = subprocess.run(
        [promtool(), *map(str, arguments)],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_prometheus_reads_every_expression(tmp_path: Path) -> None:
    run("check", "rules", FOLDER / "alerts.yml")
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "5m")}
        for number, (_, expression) in enumerate(ASKED)
    ]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(rules)} rules found" in run("check", "rules", file)


def test_prometheus_finds_nothing_to_say_of_the_names(page: str) -> None:
    ours = "".join(line for line in page.splitlines(keepends=True) if "simpletuner_" in line)
    assert run("check", "metrics", given=ours) == ""


def test_alerts_are_raised_when_they_should_and_not_before(tmp_path: Path) -> None:
    """As Prometheus evaluates them, over series that are made up."""
    series = {
        'simpletuner_queue_oldest_wait_seconds{class="admin",reason="NO_WORKERS"}': "0+60x60",
        'simpletuner_attempts_ended_total{outcome="lost",failure=""}': "0x30 0+1x30",
        'simpletuner_build_info{version="1"}': "1x60",
        "simpletuner_leader": "1x60",
        "simpletuner_storage_free_bytes": "5x60",
        "simpletuner_storage_size_bytes": "100x60",
    }
    raised = [
        ("20m", "SimpleTunerQueueNeedsSomebody", False),
        ("40m", "SimpleTunerQueueNeedsSomebody", True),
        ("20m", "SimpleTunerWorkersLost", False),
        ("50m", "SimpleTunerWorkersLost", True),
        ("10m", "SimpleTunerStorageLow", True),
        ("10m", "SimpleTunerSilent", False),
        ("10m", "SimpleTunerNoLeader", False),
    ]
    test = {
        "rule_files": [str(FOLDER / "alerts.yml")],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [
                    {
                        "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) > 0',
                        "eval_time": at,
                        "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
                    }
                    for at, name, fires in raised
                ],
            }
        ],
    }
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump(test))
    run("test", "rules", file)


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["datasource"]["uid"] == "${source}" for panel in panels)
    assert [one["name"] for one in dashboard["templating"]["list"]] == ["source"]
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


def test_every_series_of_ours_has_a_row_in_the_document(page: str) -> None:
    rows = dict(re.findall(r"^\| `(simpletuner_\w+)` \|([^|]*)\|", DOCUMENT.read_text(), re.MULTILINE))
    families = {family.name: family for family in text_string_to_metric_families(page)}
    ours = {
        name + ("_total" if family.type == "counter" else ""): family
        for name, family in families.items()
        if name.startswith("simpletuner_")
    }
    assert rows.keys() == ours.keys()
    for name, family in ours.items():
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert set(re.findall(r"`(\w+)`", rows[name])) == labels, name
