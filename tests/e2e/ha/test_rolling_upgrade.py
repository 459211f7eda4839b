"""Servers of two releases side by side: upgraded one by one, no job notices, and the older one never leads again."""

import shutil
from pathlib import Path

import simpletuner_fleet
from simpletuner_fleet.store.sql.migrate import migrations_for
from tests.e2e.ha.several import Orchestrator, RunningJob, Several
from tests.e2e.processes import wait_until

LATER = "99.0.0"


def later_release(folder: Path) -> str:
    """Returns where a release lies that is this one with another number and one more step of the schema."""
    package = folder / "later" / "simpletuner_fleet"
    shutil.copytree(
        Path(simpletuner_fleet.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "sim")
    )
    start = package / "__init__.py"
    start.write_text(start.read_text().replace(simpletuner_fleet.__version__, LATER))
    number = migrations_for("postgresql")[-1].number + 1
    for dialect in ("sqlite", "postgresql"):
        step = package / "store" / "migrations" / f"{number:04}_later.{dialect}.sql"
        step.write_text("CREATE TABLE known_later (name TEXT PRIMARY KEY);\n")
    return str(package.parent)


def release_at(orchestrator: Orchestrator) -> str:
    return str(orchestrator.call("GET", "/health/live").json()["version"])


def test_servers_are_upgraded_one_by_one_and_an_older_one_passes_on_but_never_leads(several: Several) -> None:
    world, later = several.world, later_release(several.world.folder)
    first, second = several.add().start(), several.add().start(PYTHONPATH=later)
    second.becomes("follower")
    world.url = second.url
    job = RunningJob(several)
    assert (release_at(first), release_at(second)) == (simpletuner_fleet.__version__, LATER)
    world.goes_on(job.id)
    first.stop()
    second.becomes("leader")
    first.start()
    first.becomes("follower")
    world.url = first.url
    world.goes_on(job.id)
    assert world.job(job.id)["status"] == "running", "what the older one is asked, it passes on"
    second.running.kill()
    wait_until(lambda: first.role == "", "nobody leads")
    wait_until(
        lambda: f"a newer release ({LATER}) has used this database" in first.running.text, "it says why"
    )
    assert first.call("GET", "/api/jobs").status_code == 503
    second.start(PYTHONPATH=later)
    second.becomes("leader")
    first.becomes("follower")
    job.ends_undisturbed()
