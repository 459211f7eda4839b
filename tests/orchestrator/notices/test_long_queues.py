"""Many endpoints, long digests, long waits and lost answers: nothing stands still, is lost, or is told twice."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.core.notices.endpoint import Channel, DeliveryState, Endpoint, NoticeRules
from simpletuner_fleet.core.notices.kinds import Notice
from simpletuner_fleet.delivery.outbound import OutboundConnector
from simpletuner_fleet.delivery.sender import MAILS_AT_ONCE, MessageSender
from simpletuner_fleet.delivery.smtp import Relay
from simpletuner_fleet.orchestrator.notices import deliverer as deliverer_module
from simpletuner_fleet.orchestrator.notices.deliverer import NOTED_EVERY_S, Deliverer
from simpletuner_fleet.orchestrator.notices.endpoint_queue import EndpointQueue, OutgoingMessage
from simpletuner_fleet.orchestrator.notices.reading import AT_A_TIME, NoticesRead
from simpletuner_fleet.orchestrator.notices.waits import WaitWatch
from simpletuner_fleet.orchestrator.runtime import note_start
from tests.delivery.receivers import Certificates, MailServer, hook, listening, until
from tests.orchestrator.notices.notifying_server import PUBLIC, NotifyingServer, notifying_server
from tests.orchestrator.notices.test_deliverer import UnsureStore

MORNING = datetime(2027, 1, 15, 8, tzinfo=UTC).timestamp()
DAY_S, HOUR_S = 86_400.0, 3_600.0
DAILY = Endpoint(
    id="n_1",
    owner="u_1",
    name="mine",
    channel=Channel.EMAIL,
    sealed_address="",
    shown_address="",
    rules=NoticeRules(events=("job.failed",), digest="daily"),
    state=DeliveryState(cursor=0),
    created_at=0.0,
)


def read_upto(first: int, last: int) -> NoticesRead:
    """A part of the log in which every entry is a failed job of this owner."""
    notices = [
        Notice(
            seq=seq,
            hash=f"h{seq}",
            at=MORNING,
            kind="job.failed",
            target_type="job",
            target_id=f"j_{seq}",
            title=f"job {seq}",
            owner="u_1",
        )
        for seq in range(first, last + 1)
    ]
    return NoticesRead(entries=[], notices=notices, last=last)


def test_a_long_digest_that_was_begun_before_a_restart_is_sent_after_it() -> None:
    """The log was read in other parts than it is read in now, and more of it was held than is usually read."""
    before = EndpointQueue(DAILY, MORNING)
    before.take(read_upto(1, 999))
    assert before.has_room
    before.take(read_upto(1_000, 1_499))
    begun = before.next(MORNING + DAY_S)
    assert isinstance(begun, OutgoingMessage)
    after = EndpointQueue(replace(DAILY, state=replace(DAILY.state, upto=begun.upto)), MORNING)
    while after.has_room and after.scanned < 5_000:
        after.take(read_upto(after.scanned + 1, after.scanned + AT_A_TIME))
    again = after.next(MORNING + DAY_S)
    assert isinstance(again, OutgoingMessage), "it waits for ever for what is never read"
    assert again.message == begun.message


async def test_how_far_many_endpoints_were_told_is_noted_together(
    tmp_path: Path, certs: Certificates
) -> None:
    writes = 0

    class CountedStore(UnsureStore):
        async def write(self, step):  # type: ignore[no-untyped-def]
            nonlocal writes
            writes += 1
            return await super().write(step)

    async with notifying_server(tmp_path, certs, CountedStore()) as here:
        made = [await here.add("https://example.org/hook") for _ in range(20)]
        await here.stop()
        fleet = here.running.fleet
        looking = Deliverer(fleet, MessageSender(OutboundConnector(), None, PUBLIC, "host"))
        for one in made:
            await looking.changed(one["endpoint"]["id"])
        here.running.clock.at += NOTED_EVERY_S
        await note_start(fleet, "1")
        writes = 0
        await looking.look_once()
        await looking.stop()
        head = fleet.audit_head
        assert head
        stored = await fleet.read(lambda view: view.endpoints())
        assert [one.state.cursor for one in stored] == [head.seq] * 20
        assert writes <= 2, "each of them was waited for before the next"


async def test_a_mail_server_is_not_called_by_everybody_at_once(tmp_path: Path, certs: Certificates) -> None:
    """Mail servers take a few calls from one machine at a time, and refuse the others."""
    server, calls, most = MailServer(), 0, 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls, most
        calls += 1
        most = max(most, calls - len(server.got))
        await asyncio.sleep(0.1)
        await server.serve(reader, writer)

    async with listening(serve) as port:
        relay = Relay(host="localhost", port=port, security="plain", sender="fleet@example.org")
        async with notifying_server(tmp_path, certs, relay=relay) as here:
            for number in range(20):
                await here.add(f"u{number}@example.org", "email")
            await here.ends(await here.running.worker())
            await until(lambda: len(server.got) == 20)
    assert most == MAILS_AT_ONCE


async def waits_noted(here: NotifyingServer) -> int:
    return len((await here.running.get("/api/audit", event_type="job.waits_long"))["entries"])


async def test_waits_from_before_anybody_asked_are_not_told_in_a_quiet_fleet(
    tmp_path: Path, certs: Certificates
) -> None:
    async with notifying_server(tmp_path, certs) as here:
        await here.running.submit()
        here.running.clock.at += 10 * HOUR_S
        await WaitWatch(here.running.fleet).look(here.running.clock.at)
        assert await waits_noted(here) == 0


async def test_a_wait_that_becomes_too_long_while_the_server_is_off_is_told_after_it(
    tmp_path: Path, certs: Certificates
) -> None:
    async with notifying_server(tmp_path, certs) as here:
        await WaitWatch(here.running.fleet).look(here.running.clock.at)
        await here.running.submit()
        here.running.clock.at += 3 * HOUR_S
        await note_start(here.running.fleet, "1")
        await WaitWatch(here.running.fleet).look(here.running.clock.at)
        assert await waits_noted(here) == 1


async def test_a_wait_whose_note_was_written_and_not_confirmed_is_told_once(
    tmp_path: Path, certs: Certificates
) -> None:
    store = UnsureStore()
    async with notifying_server(tmp_path, certs, store) as here:
        watch = WaitWatch(here.running.fleet)
        await watch.look(here.running.clock.at)
        await here.running.submit()
        here.running.clock.at += 2 * HOUR_S
        store.lost_writes = 1
        with pytest.raises(StoreUnavailable):
            await watch.look(here.running.clock.at)
        here.running.clock.at += 60.0
        await watch.look(here.running.clock.at)
        assert await waits_noted(here) == 1


@pytest.mark.parametrize("change", ["add", "resume", "delete"])
async def test_a_change_that_the_deliverer_is_not_told_of_counts_soon(
    tmp_path: Path, certs: Certificates, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """The answer of the store is lost: whoever asked gives up, and the list says that it is active, or gone."""
    monkeypatch.setattr(deliverer_module, "COMPARED_EVERY_S", 0.1)
    async with notifying_server(tmp_path, certs) as here, hook() as receiver:
        deps, http = here.running.deps, here.running.http
        path = ""
        if change != "add":
            path = f"/api/notifications/{(await here.add(receiver.url))['endpoint']['id']}"
        if change == "resume":
            await here.running.post(f"{path}/pause")
        untold, deps.deliverer = deps.deliverer, None
        match change:
            case "add":
                await here.add(receiver.url)
            case "resume":
                await here.running.post(f"{path}/resume")
            case _:
                assert (await http.delete(path)).status_code == 200
        deps.deliverer = untold
        await asyncio.sleep(0.3)
        await here.ends(await here.running.worker())
        if change == "delete":
            await asyncio.sleep(0.8)
            assert receiver.got == []
        else:
            await receiver.has(1)
