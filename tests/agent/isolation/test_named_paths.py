"""A config that names what is on the worker and not for its jobs is refused with the path and the option that grants it."""

from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.agent.attempts.preparation import blame_for
from simpletuner_fleet.agent.isolation.named_paths import refuse_unseen
from simpletuner_fleet.agent.isolation.path_access import PathAccess
from simpletuner_fleet.agent.isolation.places import Place
from simpletuner_fleet.core.jobs.failure import classify
from simpletuner_fleet.core.worker_errors import PathNotGranted
from simpletuner_fleet.core.workers.start_trouble import Blame
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.contract import Launch


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    for name in ("granted", "written", "secret", "job", "state", "home/models"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def look(
    disk: Path, *, argv: tuple[str, ...] = ("python",), own_user: bool = False, home: str = "", **parts: Any
) -> str:
    """What was said against it, or ''."""
    places: list[Place] = [
        (str(disk / "granted"), str(disk / "granted"), "ro"),
        (str(disk / "written"), str(disk / "written"), "rw"),
        (str(disk / "state"), str(disk / "state"), "hide"),
        ("/usr", "/usr", "ro"),
    ]
    fields: dict[str, Any] = {"config": {}, **parts}
    offer = JobSubmit(
        job_id="j_1",
        attempt=1,
        attempt_id="a_1",
        epoch=1,
        config_name="c",
        trainer="simpletuner",
        upload_endpoint="",
        **fields,
    )
    launch = Launch(argv=list(argv), env={}, cwd=str(disk / "job"))
    try:
        refuse_unseen(offer, launch, PathAccess(places, own_user), [disk / "job"], home or str(disk / "home"))
    except PathNotGranted as refusal:
        return refusal.detail
    return ""


def test_a_path_that_is_not_granted_is_named_with_the_option_that_grants_it(disk: Path) -> None:
    model = str(disk / "secret")
    said = look(disk, config={"pretrained_model_name_or_path": model})
    assert "settings.pretrained_model_name_or_path names" in said
    assert f"simpletuner worker --job-path {model}:ro" in said
    failure = classify(None, None, None, said)
    assert (failure.code, failure.evidence) == ("path_not_granted", said)
    assert model in look(disk, dataloader=[{"id": "cats", "instance_data_dir": model}])
    assert model in look(disk, env={"MODEL_DIR": model})
    assert model in look(disk, argv=(f"{model}",))
    assert "models" in look(disk, config={"model": "~/models"})


def test_it_is_no_fault_of_the_worker_and_another_may_grant_it() -> None:
    assert blame_for(PathNotGranted("settings.x names /x, which is not granted to jobs")) is Blame.ELSEWHERE


@pytest.mark.parametrize("own_user", [False, True])
@pytest.mark.parametrize("where", ["model", "output_dir", "cache_dir"])
def test_nobody_learns_what_is_on_the_worker_beyond_what_is_granted(
    disk: Path, where: str, own_user: bool
) -> None:
    """A folder, one that is closed, a link, what is the worker's own: as if none were there."""
    outside = Path("/opt/../srv") / disk.name
    (disk / "secret").chmod(0o700)
    (disk / "link").symlink_to("/usr/bin")
    said = {
        look(disk, config={where: str(path)}, own_user=own_user, home="/nobody").replace(str(path), "PATH")
        for path in (
            disk / "secret",
            disk / "nothing",
            disk / "link",
            disk / "state",
            disk / "nothing/at/all",
        )
    }
    assert len(said) == 1
    if where != "cache_dir":
        assert "not granted to jobs" in said.pop()
    assert look(disk, config={where: str(outside)}, own_user=own_user), (
        "nor where jobs have folders of their own"
    )


def test_what_is_granted_the_jobs_own_or_no_path_is_no_trouble(disk: Path) -> None:
    assert not look(
        disk,
        config={
            "model": str(disk / "granted"),
            "vae": str(disk / "granted/nothing"),
            "config": str(disk / "job"),
            "name": "someone/model",
            "prompt": "/imagine a cat",
            "places": "/data:/models",
            "command": ["sed", "/pattern/d"],
            "steps": 3,
            "noise": "/dev/urandom",
            "load": "/proc/loadavg",
        },
        argv=("/usr/bin/env", "/pattern/d"),
        env={"PREFIX": "/api/v1", "PYTHONPATH": "/a:/b"},
    )


def test_a_job_may_write_in_its_own_tmp_whatever_the_workers_holds(tmp_path: Path, disk: Path) -> None:
    """The same path is refused where something is to be read from it: the job's own folder is empty."""
    assert str(tmp_path).startswith("/tmp/")
    assert not look(disk, config={"cache_dir": str(disk / "secret"), "--tmp-dir": str(disk / "secret")})
    assert look(disk, config={"model": str(disk / "secret")})


@pytest.mark.parametrize("key", ["output_dir", "--output_dir"])
def test_output_named_in_full_must_be_granted_for_writing(disk: Path, key: str) -> None:
    """Anywhere else it would be written where the worker never looks."""
    said = look(disk, config={key: str(disk / "granted/run")})
    assert f"--job-path {disk / 'granted/run'}:rw" in said
    assert look(disk, config={key: "/tmp/run"})
    assert not look(disk, config={key: str(disk / "written/run")})
    assert not look(disk, config={key: "output/run"})


def test_what_its_owner_alone_may_read_is_named_with_how_to_open_it(disk: Path) -> None:
    for folder in (disk, disk / "granted"):
        folder.chmod(0o755)
    weights = disk / "granted" / "weights"
    weights.write_text("1")
    weights.chmod(0o600)
    said = look(disk, config={"model": str(disk / "granted")}, own_user=True)
    assert str(weights) in said
    assert f"chmod -R a+rX {disk / 'granted'}" in said
    assert not look(disk, config={"model": str(disk / "granted")})
