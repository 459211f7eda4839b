from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpletuner_fleet.core.workers.worker import (
    AdminState,
    Connection,
    WorkerStatus,
    WorkerType,
    published_status,
)
from tests.core.builders import a_gpu, a_worker

STATUS = {
    ("active", "connecting", False): "connecting",
    ("active", "connecting", True): "connecting",
    ("active", "connected", False): "idle",
    ("active", "connected", True): "busy",
    ("active", "reconnecting", False): "connecting",
    ("active", "reconnecting", True): "connecting",
    ("draining", "reconnecting", False): "connecting",
    ("draining", "reconnecting", True): "connecting",
    ("active", "offline", False): "offline",
    ("active", "offline", True): "offline",
    ("draining", "connecting", False): "connecting",
    ("draining", "connecting", True): "connecting",
    ("draining", "connected", False): "draining",
    ("draining", "connected", True): "draining",
    ("draining", "offline", False): "offline",
    ("draining", "offline", True): "offline",
}


@pytest.mark.parametrize(
    ("admin", "connection", "holds_attempt"), list(product(AdminState, Connection, (False, True)))
)
def test_the_published_status_follows_from_three_facts(
    admin: AdminState, connection: Connection, holds_attempt: bool
) -> None:
    expected = WorkerStatus(STATUS[admin.value, connection.value, holds_attempt])
    assert published_status(admin, connection, holds_attempt) is expected
    assert a_worker(admin=admin, connection=connection).status(holds_attempt) is expected


def test_the_statuses_are_the_five_that_users_know() -> None:
    assert {status.value for status in WorkerStatus} == {
        *("connecting", "idle", "busy", "draining", "offline"),
    }


@pytest.mark.parametrize(
    ("chosen", "reported", "expected"),
    [
        (None, None, WorkerType.PERSISTENT),
        (None, WorkerType.EPHEMERAL, WorkerType.EPHEMERAL),
        (WorkerType.PERSISTENT, WorkerType.EPHEMERAL, WorkerType.PERSISTENT),
        (WorkerType.EPHEMERAL, WorkerType.PERSISTENT, WorkerType.EPHEMERAL),
    ],
)
def test_the_admins_choice_of_type_wins(
    chosen: WorkerType | None, reported: WorkerType | None, expected: WorkerType
) -> None:
    assert a_worker(chosen_type=chosen, reported_type=reported).worker_type is expected


def test_reported_labels_fill_only_what_the_admin_left_out() -> None:
    worker = a_worker(labels={"gpu_type": "a100"}, reported_labels={"gpu_type": "h100", "hostname": "x"})
    assert worker.effective_labels == {"gpu_type": "a100", "hostname": "x"}


keys = st.sampled_from(["team", "TEAM", "Team", "pool", "POOL", "host"])
labels = st.dictionaries(keys, st.sampled_from(["a", "b", "c"]))


@settings(max_examples=100)
@given(labels, labels)
def test_no_spelling_of_a_key_lets_a_worker_overrule_its_admin(
    chosen: dict[str, str], reported: dict[str, str]
) -> None:
    effective = a_worker(labels=chosen, reported_labels=reported).effective_labels
    assert {key: effective[key] for key in chosen} == chosen
    said = {key.casefold() for key in chosen}
    assert {key for key in effective if key.casefold() in said} == set(chosen)
    assert set(effective) - set(chosen) == {key for key in reported if key.casefold() not in said}


def test_a_worker_is_described_by_its_gpus() -> None:
    worker = a_worker(gpus=(a_gpu(0, vram_gb=80), a_gpu(1, vram_gb=24)))
    assert worker.gpu_count == 2
    assert worker.gpu_name == "NVIDIA A100-SXM4-80GB"
    assert worker.gpu_vram_gb == 24
    assert worker.accelerator_type == "cuda"


def test_a_worker_without_gpus_is_described_without_them() -> None:
    worker = a_worker(gpus=0)
    assert worker.gpu_count == 0
    assert worker.gpu_name is None
    assert worker.gpu_vram_gb is None
    assert worker.accelerator_type is None
