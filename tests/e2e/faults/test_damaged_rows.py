"""One row that cannot be read costs what it was about, and nothing else."""

import sqlite3

import pytest

from tests.e2e.kit import World

DAMAGE = {
    "a job's list": ("UPDATE jobs SET depends_on = 'not json' WHERE id = :id", "(DecodeError"),
    "a job's state": ("UPDATE jobs SET requires = '[1' WHERE id = :id", "(ValidationError"),
    "a job's number": (
        "UPDATE jobs SET created_at = 'yesterday' WHERE id = :id",
        "(TypeError: created_at is stored as str",
    ),
    "an attempt": ("UPDATE attempts SET gpus = '{' WHERE job_id = :id", "(ValidationError"),
}
"""By what is damaged, how, and what is told of it."""


def damage(world: World, statement: str, row_id: str) -> None:
    connection = sqlite3.connect(world.home / "fleet.db")
    with connection:
        changed = connection.execute(statement, {"id": row_id}).rowcount
    connection.close()
    assert changed == 1


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_server_with_a_damaged_row_starts_and_everything_else_goes_on(world: World, kind: str) -> None:
    world.start_worker("one")
    other = world.start_worker("two")
    first_gate, gate = world.gate(), world.gate()
    damaged = world.submit(world.ticking(first_gate))
    world.runs(damaged)
    sound = world.submit(world.ticking(gate))
    trainer = world.runs(sound)
    world.kill_server()
    statement, complaint = DAMAGE[kind]
    damage(world, statement, damaged)
    world.restart_server()
    world.goes_on(sound)
    gate.write_text("0")
    job = world.becomes(sound, "completed")
    assert [run.pid for run in world.journal.runs(sound)] == [trainer]
    assert (job["attempt"], job["losses"]) == (1, 0)
    assert world.becomes(world.submit(world.command("true")), "completed")
    other.becomes("idle")
    reported = world.cli("doctor", "server")
    assert "unreadable" in reported.stdout
    assert complaint in reported.stdout


def test_a_damaged_worker_is_set_aside_and_the_others_work(world: World) -> None:
    bad = world.start_worker("bad")
    good = world.start_worker("good")
    world.kill_server()
    damage(world, "UPDATE workers SET gpus = '[[' WHERE id = :id", bad.id)
    world.restart_server()
    good.becomes("idle")
    assert world.becomes(world.submit(world.command("true")), "completed")
    assert bad.running.alive
    reported = world.cli("doctor", "server")
    assert f"workers {bad.id}" in reported.stdout
