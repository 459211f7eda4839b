import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.errors import NameTaken
from simpletuner_fleet.core.workers.worker import AdminState, Connection, DrainPlan, Gpu, Worker, WorkerType
from simpletuner_fleet.ports import ConcurrentChange, Store, Tx
from tests.store.samples import worker

EVERY_FIELD = worker(
    1,
    chosen_type=WorkerType.PERSISTENT,
    reported_type=WorkerType.EPHEMERAL,
    admin=AdminState.DRAINING,
    connection=Connection.OFFLINE,
    labels={"team": "nlp", "ort": "Köln"},
    reported_labels={"gpu_type": "a100"},
    gpus=(
        Gpu(index=0, uuid="GPU-1", name="A100", vram_gb=80.0),
        Gpu(index=1, uuid="GPU-2", unusable="unhealthy"),
    ),
    trainers=("simpletuner", "command"),
    max_jobs=2,
    legacy=True,
    local=True,
    agent_version="1.2",
    home="h_1",
    incarnation="i_1",
    message_seq=7,
    registered_at=1.5,
    last_heartbeat=2.5,
    offline_since=3.5,
    drain_note="new driver",
    drain_plan=DrainPlan(timeout_s=60.0, deadline=4.5, checkpoint_first=False),
    address="10.0.0.7",
    tls="pinned",
    former_tokens=("hash-0", "hash-00"),
    version=3,
)


async def add(store: Store, *workers: Worker) -> None:
    def step(tx: Tx) -> None:
        for each in workers:
            tx.add_worker(each)

    await store.write(step)


def ids(workers: list[Worker]) -> list[str]:
    return [each.id for each in workers]


async def test_a_worker_comes_back_as_it_was_stored(store: Store) -> None:
    await add(store, EVERY_FIELD)
    assert await store.read(lambda view: view.worker("w_1")) == EVERY_FIELD


async def test_every_changing_field_of_a_worker_is_saved(store: Store) -> None:
    await add(store, worker(1, created_at=EVERY_FIELD.created_at))
    await store.write(
        lambda tx: tx.save_worker(replace(EVERY_FIELD, version=0, name="new", token_hash="new"))
    )
    expected = replace(EVERY_FIELD, version=1, name="new", token_hash="new")
    assert await store.read(lambda view: view.worker("w_1")) == expected
    assert await store.read(lambda view: view.worker_by_name("gpu-1")) is None
    assert await store.read(lambda view: view.worker_by_token_hash("new")) == expected
    assert await store.read(lambda view: view.worker_by_token_hash("hash-1")) is None


async def test_a_worker_saved_with_an_old_version_is_refused(store: Store) -> None:
    await add(store, worker(1))
    await store.write(lambda tx: tx.save_worker(worker(1, max_jobs=2)))
    with pytest.raises(ConcurrentChange):
        await store.write(lambda tx: tx.save_worker(worker(1, max_jobs=3)))
    with pytest.raises(ConcurrentChange):
        await store.write(lambda tx: tx.save_worker(worker(9)))
    assert await store.read(lambda view: view.worker("w_1")) == worker(1, max_jobs=2, version=1)


@pytest.mark.parametrize(
    ("first", "second"), [("gpu", "gpu"), ("gpu", "GPU"), ("Ärger", "ÄRGER"), ("ß", "SS")]
)
async def test_names_are_unique_without_regard_to_case(store: Store, first: str, second: str) -> None:
    await add(store, worker(1, name=first), worker(2))
    with pytest.raises(NameTaken):
        await add(store, worker(3, name=second))
    with pytest.raises(NameTaken):
        await store.write(lambda tx: tx.save_worker(worker(2, name=second)))
    stored_worker = await store.read(lambda view: view.worker_by_name(second))
    assert stored_worker is not None
    assert stored_worker.id == "w_1"


async def test_two_workers_share_neither_id_nor_token(store: Store) -> None:
    await add(store, worker(1), worker(2))
    with pytest.raises(ConcurrentChange):
        await add(store, worker(1, name="other", token_hash="other"))
    with pytest.raises(ConcurrentChange):
        await add(store, worker(3, token_hash="hash-1"))
    with pytest.raises(ConcurrentChange):
        await store.write(lambda tx: tx.save_worker(worker(2, token_hash="hash-1")))


async def test_a_deleted_worker_frees_its_name(store: Store) -> None:
    await add(store, worker(1))
    await store.write(lambda tx: tx.delete_worker("w_1"))
    await store.write(lambda tx: tx.delete_worker("w_1"))
    assert await store.read(lambda view: view.worker("w_1")) is None
    assert await store.read(lambda view: view.worker_by_token_hash("hash-1")) is None
    await add(store, worker(2, name="gpu-1", token_hash="hash-1"))


async def test_a_heartbeat_changes_nothing_else_and_unknown_workers_are_ignored(store: Store) -> None:
    await add(store, worker(1), worker(2))
    await store.write(lambda tx: tx.touch_heartbeats([("w_1", 50.0), ("w_gone", 51.0), ("w_2", 52.0)]))
    assert await store.read(lambda view: view.workers()) == [
        worker(1, last_heartbeat=50.0),
        worker(2, last_heartbeat=52.0),
    ]
    await store.write(lambda tx: tx.touch_heartbeats([]))


async def test_workers_come_oldest_first(store: Store) -> None:
    await add(store, worker(1, created_at=9.0), worker(2, created_at=3.0), worker(3, created_at=3.0))
    assert ids(await store.read(lambda view: view.workers())) == ["w_2", "w_3", "w_1"]


async def test_only_workers_long_offline_are_old(store: Store) -> None:
    offline = Connection.OFFLINE
    await add(
        store,
        worker(1, connection=offline, offline_since=20.0),
        worker(2, connection=offline, offline_since=10.0),
        worker(3, connection=offline, offline_since=30.0),
        worker(4, connection=Connection.CONNECTED, offline_since=10.0),
    )
    assert ids(await store.read(lambda view: view.offline_workers_before(30.0))) == ["w_2", "w_1"]


async def test_the_number_of_the_newest_message_only_rises(store: Store) -> None:
    fresh = worker(1)
    await store.write(lambda tx: tx.add_worker(fresh))

    def note(tx: Tx) -> None:
        for seq in (3, 7, 5):
            tx.note_message_seq(fresh.id, seq)

    await store.write(note)
    stored_worker = await store.read(lambda view: view.worker(fresh.id))
    assert stored_worker == replace(fresh, message_seq=7)
