"""Endpoints and what was sent there."""

from msgspec.structs import replace

from simpletuner_fleet.core.notices.endpoint import (
    Channel,
    Delivery,
    Endpoint,
    NoticeRules,
    QuietHours,
    SigningKey,
)
from simpletuner_fleet.core.notices.timing import after_failure
from simpletuner_fleet.ports import Store
from tests.core.notices.test_timing import endpoint


def delivery(endpoint_id: str, event: str) -> Delivery:
    return Delivery(
        endpoint_id=endpoint_id,
        number=0,
        message_id="msg_1",
        at=1.5,
        event=event,
        first_seq=1,
        last_seq=2,
        ok=True,
        detail="HTTP 200",
        took_s=0.1,
    )


async def test_an_endpoint_comes_back_as_it_was_stored(store: Store) -> None:
    full = Endpoint(
        id="n_2",
        owner="u_1",
        name="a\ud800b\0",
        channel=Channel.WEBHOOK,
        sealed_address="x",
        shown_address="https://example.org/…",
        rules=NoticeRules(events=("job.failed",), quiet=QuietHours(start=1, end=2), zone="Europe/Berlin"),
        state=after_failure(endpoint(), "no", 5.0).state,
        created_at=1.5,
        keys=(SigningKey(sealed="k", number=1, created_at=1.0, until=9.0),),
        turn=3,
    )
    await store.write(lambda tx: tx.put_endpoint(replace(full, turn=2)))
    await store.write(lambda tx: tx.put_endpoint(endpoint()))
    await store.write(lambda tx: tx.put_endpoint(full))
    read = await store.read(lambda view: view.endpoint("n_2"))
    assert read is not None
    assert replace(read, name="") == replace(full, name="")
    assert [one.id for one in await store.read(lambda view: view.endpoints())] == ["n_1", "n_2"]
    assert await store.read(lambda view: view.endpoint("n_3")) is None


async def test_the_newest_deliveries_are_kept_and_go_with_their_endpoint(store: Store) -> None:
    await store.write(lambda tx: tx.put_endpoint(endpoint()))
    await store.write(lambda tx: tx.add_delivery(delivery("n_9", "other"), 5))
    for count in range(7):
        await store.write(lambda tx, count=count: tx.add_delivery(delivery("n_1", str(count)), 5))  # type: ignore[misc]
    kept = await store.read(lambda view: view.deliveries("n_1", 100))
    assert [(one.event, one.number) for one in kept] == [("6", 7), ("5", 6), ("4", 5), ("3", 4), ("2", 3)]
    assert len(await store.read(lambda view: view.deliveries("n_1", 2))) == 2
    await store.write(lambda tx: tx.delete_endpoint("n_1"))
    assert await store.read(lambda view: view.deliveries("n_1", 100)) == []
    assert await store.read(lambda view: view.endpoint("n_1")) is None
    assert len(await store.read(lambda view: view.deliveries("n_9", 100))) == 1
