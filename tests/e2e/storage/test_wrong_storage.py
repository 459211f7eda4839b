"""Storage that is not ours or does not work: the server says so and touches nothing."""

from pathlib import Path

from tests.e2e.kit import World
from tests.e2e.processes import wait_until
from tests.e2e.storage.test_checkpoints import demo, stored_step
from tests.s3_server import CREDENTIALS


def objects_in(storage: Path) -> list[str]:
    return sorted(path.name for path in (storage / "objects").glob("*/*"))


def test_an_empty_database_neither_starts_on_a_fleets_storage_nor_takes_anything_from_it(
    bare_world: World, tmp_path: Path
) -> None:
    world, storage = bare_world, tmp_path / "shared-storage"
    world.start_server(SIMPLETUNER_STORAGE_URL=f"file://{storage}", SIMPLETUNER_OBJECT_GRACE="0.2")
    world.start_worker("one")
    job_id = world.submit(demo())
    stored_step(world, job_id, at_least=10)
    world.becomes(job_id, "completed")
    files = objects_in(storage)
    assert files
    world.kill_server()

    world.home = tmp_path / "another-home"
    stranger = world.launch_server()
    wait_until(lambda: not stranger.alive, "the stranger ends")
    assert stranger.process.poll() == 2
    assert "The storage belongs to the fleet f_" in stranger.text
    assert "--adopt-storage" in stranger.text
    assert "Traceback" not in stranger.text
    assert objects_in(storage) == files

    world.home = tmp_path / "server"
    world.restart_server()
    assert objects_in(storage) == files


def test_a_server_whose_bucket_does_not_answer_does_not_start(bare_world: World) -> None:
    bare_world.environment.update(CREDENTIALS)
    bare_world.settings["SIMPLETUNER_STORAGE_URL"] = "s3://bucket/fleet?endpoint=http://127.0.0.1:9"
    bare_world._server_arguments = ["--port", str(bare_world.port), "--no-local"]
    server = bare_world.launch_server()
    wait_until(lambda: not server.alive, "the server ends", 90)
    assert server.process.poll() == 1
    assert "The storage failed a write, read and delete test" in server.text
    assert "Traceback" not in server.text
