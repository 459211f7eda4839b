"""What has happened is told: once at least, in order, to whom it concerns, through failures and restarts."""

import asyncio
import email
import email.policy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.core.notices.timing import GIVEN_UP_AFTER_S, PAUSES_S
from simpletuner_fleet.delivery.outbound import OutboundConnector
from simpletuner_fleet.delivery.sender import MessageSender
from simpletuner_fleet.delivery.smtp import Relay
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.notices.deliverer import Deliverer
from simpletuner_fleet.orchestrator.notices.endpoints import address_seal
from simpletuner_fleet.ports import Store, Tx, View
from simpletuner_fleet.store import MemoryStore
from simpletuner_fleet.store.postgres import PostgresStore
from simpletuner_fleet.store.sqlite import SqliteStore
from tests.delivery.receivers import Certificates, LogReceiver, MailServer, hook, listening, until
from tests.http.api_kit import CPU_CONFIG
from tests.orchestrator.notices.notifying_server import PUBLIC, NotifyingServer, notifying_server
from tests.ready_databases import lay_sqlite

T = TypeVar("T")


async def test_the_owner_of_a_job_is_told_of_its_end_and_nobody_else(
    tmp_path: Path, certs: Certificates
) -> None:
    async with notifying_server(tmp_path, certs) as here, hook(certs.context) as mine, hook() as others:
        made = await here.add(mine.url)
        stranger = await here.running.token("notifications.own", name="stranger")
        await here.add(others.url, token=stranger)
        agent = await here.running.worker()
        failed = await here.ends(agent, name="cats")
        await here.ends(agent, "completed", name="dogs")
        first, second = await mine.has(2)
        assert first.document["type"] == "job.failed"
        assert first.document["data"]["job_id"] == failed
        assert first.document["data"]["name"] == "cats"
        assert first.document["data"]["url"] == f"{PUBLIC}/jobs/{failed}"
        assert second.document["type"] == "job.completed"
        assert first.is_signed_with(made["secret"])
        assert others.got == []
        view = await here.running.get(f"/api/notifications/{made['endpoint']['id']}")
        assert (view["status"], view["secrets"]) == ("active", 1)


async def test_a_failed_try_is_made_again_with_the_same_id_and_order_is_kept(
    tmp_path: Path, certs: Certificates
) -> None:
    async with notifying_server(tmp_path, certs) as here, hook() as receiver:
        receiver.statuses = [500, 503]
        made = await here.add(receiver.url)
        agent = await here.running.worker()
        jobs = [await here.ends(agent), await here.ends(agent)]
        path = f"/api/notifications/{made['endpoint']['id']}"
        for tries, pause_s in enumerate(PAUSES_S[:2], 1):
            await receiver.has(tries)
            await here.sees(path, lambda one: one["next_try_at"])
            here.running.clock.at += pause_s
        await receiver.has(4)
        assert [one.document["data"]["job_id"] for one in receiver.got] == [*jobs[:1] * 3, jobs[1]]
        ids = [one.headers["webhook-id"] for one in receiver.got]
        assert ids[0] == ids[1] == ids[2] != ids[3]
        history = (await here.running.get(f"{path}/history"))["deliveries"]
        assert [(one["ok"], one["detail"]) for one in history][-3:] == [
            (True, "HTTP 200"),
            (False, "HTTP 503"),
            (False, "HTTP 500"),
        ]


async def test_a_frozen_receiver_holds_up_nobody_else(tmp_path: Path, certs: Certificates) -> None:
    async with notifying_server(tmp_path, certs) as here, hook() as frozen, hook() as well:
        frozen.frozen = True
        await here.add(frozen.url)
        await here.add(well.url)
        agent = await here.running.worker()
        for _ in range(3):
            await here.ends(agent)
        await well.has(3)
        assert len(frozen.got) == 1


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
async def test_what_was_sent_and_not_noted_is_sent_again_with_its_id(
    tmp_path: Path, certs: Certificates, kind: str, request: pytest.FixtureRequest
) -> None:
    """The sender dies between the other side's reading and the note of it; then everything goes on where it was."""
    store: Store
    match kind:
        case "memory":
            store = MemoryStore()
        case "sqlite":
            store = SqliteStore(lay_sqlite(tmp_path / "fleet.db"))
        case _:
            store = PostgresStore(request.getfixturevalue("ready_database"))
    async with notifying_server(tmp_path, certs, store) as here, hook() as receiver:
        receiver.frozen = True
        await here.add(receiver.url)
        agent = await here.running.worker()
        first = await here.ends(agent)
        await receiver.has(1)
        await here.stop()
        second = await here.ends(agent)
        receiver.frozen = False
        await here.start()
        await receiver.has(3)
        assert [one.document["data"]["job_id"] for one in receiver.got] == [first, first, second]
        assert receiver.got[0].headers["webhook-id"] == receiver.got[1].headers["webhook-id"]
        assert receiver.got[0].body == receiver.got[1].body
        await here.stop()
        await here.start()
        await here.ends(agent)
        await receiver.has(4)
    await store.close()


async def test_who_is_not_sure_to_lead_sends_nothing(tmp_path: Path, certs: Certificates) -> None:
    async with notifying_server(tmp_path, certs) as here, hook() as receiver:
        await here.add(receiver.url)
        agent = await here.running.worker()
        here.running.fleet.leads = lambda: False
        await here.ends(agent)
        await asyncio.sleep(0.8)
        assert receiver.got == []
        await here.stop()
        here.running.fleet.leads = lambda: True
        await here.start()
        await receiver.has(1)


async def test_what_happens_in_quiet_hours_is_told_in_one_message_when_they_end(
    tmp_path: Path, certs: Certificates
) -> None:
    """The clock of these tests stands at 08:00 in UTC."""
    async with notifying_server(tmp_path, certs) as here, hook() as slack:
        here.running.clock.at = 1_800_000_000.0
        await here.add(slack.url, "slack", quiet="07:00-09:00", language="ja")
        agent = await here.running.worker()
        await here.ends(agent, name="<!channel>")
        await here.ends(agent, "completed", name="dogs")
        await asyncio.sleep(0.7)
        assert slack.got == []
        here.running.clock.at += 3600
        await slack.has(1)
        text = slack.got[0].document["text"]
        assert "&lt;!channel&gt;" in text
        assert "dogs" in text
        assert "messages from" not in text  # told in Japanese
        await here.ends(agent, name="later")
        await slack.has(2)


@pytest.mark.parametrize("over", ["revoked", "expired"])
async def test_an_endpoint_whose_owner_may_not_see_it_any_more_is_paused_and_gets_nothing(
    tmp_path: Path, certs: Certificates, over: str
) -> None:
    async with notifying_server(tmp_path, certs) as here, hook() as receiver:
        held = ["notifications.own", "admin.notifications", "admin.see_all"]
        asked = {"name": "watcher", "permissions": held, "expires_in_s": 3_600}
        token = (await here.running.post("/api/admin/tokens", asked))["token"]
        made = await here.add(receiver.url, token=token, scope="all")
        agent = await here.running.worker()
        await here.ends(agent)
        await receiver.has(1)
        watcher = made["endpoint"]["owner"]
        if over == "revoked":
            await here.running.http.delete(f"/api/admin/tokens/{watcher}")
        else:
            here.running.clock.at += 3_600
        await here.ends(agent)
        path = f"/api/notifications/{made['endpoint']['id']}"
        await here.sees(path, lambda one: one["status"] == "paused")
        assert len(receiver.got) == 1
        assert (await here.running.get(path))["error"] == "its owner may not see this any more"
        entries = (await here.running.get("/api/audit", event_type="notification.paused"))["entries"]
        assert entries[0]["actor_id"] == "orchestrator"


async def test_what_fails_for_days_is_paused_and_resuming_loses_nothing(
    tmp_path: Path, certs: Certificates
) -> None:
    async with notifying_server(tmp_path, certs) as here, hook() as receiver:
        receiver.statuses = [500] * 2
        made = await here.add(receiver.url)
        path = f"/api/notifications/{made['endpoint']['id']}"
        agent = await here.running.worker()
        job = await here.ends(agent)
        await receiver.has(1)
        await here.sees(path, lambda one: one["next_try_at"])
        here.running.clock.at += GIVEN_UP_AFTER_S
        await here.sees(path, lambda one: one["status"] == "paused")
        assert (await here.running.get(path))["in_trouble"]
        await here.running.post(f"{path}/resume")
        await receiver.has(3)
        assert {one.document["data"]["job_id"] for one in receiver.got} == {job}
        assert len({one.headers["webhook-id"] for one in receiver.got}) == 1


async def test_replayed_messages_have_the_ids_they_had(tmp_path: Path, certs: Certificates) -> None:
    async with notifying_server(tmp_path, certs) as here, hook() as receiver:
        made = await here.add(receiver.url)
        agent = await here.running.worker()
        await here.ends(agent)
        await here.ends(agent)
        await receiver.has(2)
        await here.running.post(f"/api/notifications/{made['endpoint']['id']}/replay", {"seq": 1})
        await receiver.has(4)
        ids = [one.headers["webhook-id"] for one in receiver.got]
        assert ids[:2] == ids[2:]


async def test_two_secrets_sign_while_one_takes_over_from_the_other(
    tmp_path: Path, certs: Certificates
) -> None:
    async with notifying_server(tmp_path, certs) as here, hook() as receiver:
        made = await here.add(receiver.url)
        path = f"/api/notifications/{made['endpoint']['id']}"
        rotated = await here.running.post(f"{path}/secret", {"overlap_s": 3600})
        assert rotated["endpoint"]["secrets"] == 2
        agent = await here.running.worker()
        await here.ends(agent)
        [both] = await receiver.has(1)
        assert both.is_signed_with(made["secret"])
        assert both.is_signed_with(rotated["secret"])
        here.running.clock.at += 3601
        await here.ends(agent)
        await receiver.has(2)
        assert not receiver.got[1].is_signed_with(made["secret"])
        assert receiver.got[1].is_signed_with(rotated["secret"])


async def test_mail_is_sent_in_the_owners_language_with_a_link(tmp_path: Path, certs: Certificates) -> None:
    server = MailServer(context=certs.context)
    async with listening(server.serve) as port:
        relay = Relay(host="localhost", port=port, security="starttls", sender="fleet@example.org")
        async with notifying_server(tmp_path, certs, relay=relay) as here:
            await here.add("anna@example.org", "email", language="pt-BR")
            job = await here.ends(await here.running.worker(), name="gatos")
            await until(lambda: bool(server.got))
    mail = email.message_from_string(server.got[0].text, policy=email.policy.default)
    assert "gatos" in mail["subject"]
    assert "failed" not in mail["subject"]
    assert f"{PUBLIC}/jobs/{job}" in mail.get_content()


async def test_the_audit_log_streams_whole_and_in_order_to_a_webhook_and_to_syslog(
    tmp_path: Path, certs: Certificates
) -> None:
    logs = LogReceiver()
    async with (
        notifying_server(tmp_path, certs) as here,
        hook() as siem,
        listening(logs.serve, certs.context) as port,
    ):
        await here.add(siem.url, events=["audit"])
        await here.add(f"tls://localhost:{port}", "syslog", events=["audit"])
        agent = await here.running.worker()
        await here.ends(agent)
        head = here.running.fleet.audit_head
        assert head

        def entries() -> list[dict[str, Any]]:
            return [one for post in siem.got for one in post.document["data"]["entries"]]

        await until(lambda: bool(entries()) and entries()[-1]["seq"] == head.seq)
        numbers = [one["seq"] for one in entries()]
        assert numbers == list(range(numbers[0], head.seq + 1))
        assert entries()[-1]["hash"] == head.hash
        await until(lambda: any(f'seq="{head.seq}"' in line for line in logs.lines))


async def test_a_spoiled_loss_a_long_wait_and_a_lost_worker_are_told(
    tmp_path: Path, certs: Certificates
) -> None:
    async with notifying_server(tmp_path, certs, waits_long_s=1800.0) as here, hook() as receiver:
        events = ["job.loss_nan", "job.waits_long", "worker.lost"]
        await here.add(receiver.url, events=events)
        agent = await here.running.worker()
        await here.running.submit(name="spoiled")
        offer = await agent.take()
        note = {"id": "nan-3", "at": 1.0, "kind": "watchdog_nan", "text": "the loss was NaN at step 3"}
        for _ in range(2):
            body = {"epoch": offer["epoch"], "notes": [note]}
            await agent.call(f"job/{offer['job_id']}/notes", body)
        await receiver.has(1)
        assert receiver.got[0].document["type"] == "job.loss_nan"
        assert receiver.got[0].document["data"]["why"] == "the loss was NaN at step 3"
        waiting = await here.running.submit(name="patient")
        await here.running.pass_time(200)
        await receiver.has(2)
        assert receiver.got[1].document["type"] == "worker.lost"
        here.running.clock.at += 1800
        await receiver.has(3)
        late = {one.document["data"]["job_id"] for one in receiver.got[2:]}
        assert receiver.got[2].document["type"] == "job.waits_long"
        assert waiting["job_id"] in late
        here.running.clock.at += 3600
        await asyncio.sleep(0.8)
        assert [one.document["type"] for one in receiver.got].count("job.waits_long") == len(late)


async def test_who_approves_is_told_of_what_waits_for_it_and_the_owner_of_what_they_said(
    tmp_path: Path, certs: Certificates
) -> None:
    async with (
        notifying_server(tmp_path, certs, require_approval=True) as here,
        hook() as approver,
        hook() as owner,
    ):
        token = await here.running.token(
            *("queue.submit", "queue.submit.command", "jobs.read", "notifications.own"), name="ann"
        )
        await here.add(approver.url, events=["approval.needed"])
        await here.add(owner.url, token=token, events=["job.approved", "job.rejected"])
        jobs = []
        async with here.running.as_user(token) as http:
            for name in ("good", "bad"):
                body = {"name": name, "config": CPU_CONFIG}
                jobs.append((await http.post("/api/queue/submit", json=body)).json()["job_id"])
        await approver.has(2)
        assert [one.document["type"] for one in approver.got] == ["approval.needed"] * 2
        assert [one.document["data"]["job_id"] for one in approver.got] == jobs
        await here.running.post(f"/api/queue/{jobs[0]}/approve")
        await here.running.post(f"/api/queue/{jobs[1]}/reject", {"reason": "too large"})
        await owner.has(2)
        assert [one.document["type"] for one in owner.got] == ["job.approved", "job.rejected"]
        assert len(approver.got) == 2


async def test_without_endpoints_the_log_is_not_read(tmp_path: Path, certs: Certificates) -> None:
    reads = 0

    class CountedStore(MemoryStore):
        async def read(self, look):  # type: ignore[no-untyped-def]
            nonlocal reads
            reads += 1
            return await super().read(look)

    async with notifying_server(tmp_path, certs, CountedStore()) as here:
        await asyncio.sleep(0.1)
        before = reads
        await here.running.fleet.act(lambda transaction: None)
        await asyncio.sleep(1.2)
        assert reads == before


async def test_a_test_message_says_what_came_of_it(tmp_path: Path, certs: Certificates) -> None:
    async with notifying_server(tmp_path, certs) as here, hook() as receiver:
        made = await here.add(receiver.url, "discord")
        path = f"/api/notifications/{made['endpoint']['id']}"
        receiver.statuses = [204, 403]
        assert await here.running.post(f"{path}/test") == {"state": "delivered", "detail": "HTTP 204"}
        assert receiver.got[0].document["allowed_mentions"] == {"parse": []}
        assert await here.running.post(f"{path}/test") == {"state": "failed", "detail": "HTTP 403"}
        history = (await here.running.get(f"{path}/history"))["deliveries"]
        assert [one["event"] for one in history] == ["test", "test"]
        assert json.dumps(history).count("HTTP 403") == 1


async def test_of_two_changes_at_once_only_one_goes_on_sending(tmp_path: Path, certs: Certificates) -> None:
    reads, may_read = asyncio.Event(), asyncio.Event()

    class SlowStore(MemoryStore):
        async def read(self, look):  # type: ignore[no-untyped-def]
            task = asyncio.current_task()
            if task and task.get_name() == "slow":
                reads.set()
                await may_read.wait()
            return await super().read(look)

    async with notifying_server(tmp_path, certs, SlowStore()) as here, hook() as receiver:
        receiver.frozen = True
        made = await here.add(receiver.url)
        await here.ends(await here.running.worker())
        await receiver.has(1)
        deliverer = here.running.deps.deliverer
        assert deliverer is not None
        slow = asyncio.create_task(deliverer.changed(made["endpoint"]["id"]), name="slow")
        await reads.wait()
        await deliverer.changed(made["endpoint"]["id"])
        await receiver.has(2)
        may_read.set()
        await slow
        await receiver.has(3)
        sending = [one for one in asyncio.all_tasks() if one.get_coro().__qualname__ == "Deliverer._tell"]  # type: ignore[union-attr]
        assert len(sending) == 1


class UnsureStore(MemoryStore):
    """Fails after it has written, or before it reads, as often as it is told to."""

    lost_writes = lost_reads = 0

    async def write(self, step: Callable[[Tx], T]) -> T:
        written = await super().write(step)
        if self.lost_writes:
            self.lost_writes -= 1
            raise StoreUnavailable("the answer was lost")
        return written

    async def read(self, look: Callable[[View], T]) -> T:
        if self.lost_reads:
            self.lost_reads -= 1
            raise StoreUnavailable("nobody answers")
        return await super().read(look)


async def test_a_change_whose_answer_was_lost_makes_nothing_be_sent_again_and_again(
    tmp_path: Path, certs: Certificates
) -> None:
    store = UnsureStore()
    async with notifying_server(tmp_path, certs, store) as here, hook() as receiver:
        made = await here.add(receiver.url)
        path = f"/api/notifications/{made['endpoint']['id']}"
        agent = await here.running.worker()
        store.lost_writes = 1
        answer = await here.running.http.patch(path, json={"name": "other"})
        assert answer.status_code == 503
        await here.ends(agent)
        await here.sees(f"{path}/history", lambda one: one["deliveries"])
        await here.ends(agent)
        await receiver.has(3)
        former, first, second = (one.headers["webhook-id"] for one in receiver.got)
        assert former == first != second, "once by the former state of the endpoint, and once for each job"


async def test_an_endpoint_that_could_not_be_read_after_a_change_is_read_later(
    tmp_path: Path, certs: Certificates
) -> None:
    store = UnsureStore()
    async with notifying_server(tmp_path, certs, store) as here, hook() as receiver:
        made = await here.add(receiver.url)
        deliverer = here.running.deps.deliverer
        assert deliverer is not None
        store.lost_reads = 1
        with pytest.raises(StoreUnavailable):
            await deliverer.changed(made["endpoint"]["id"])
        await here.ends(await here.running.worker())
        await receiver.has(1)


async def with_address(here: NotifyingServer, url: str, address: str) -> str:
    """An endpoint with an address that was taken before such addresses were refused; returns its path."""
    endpoint_id = (await here.add(url))["endpoint"]["id"]
    fleet = here.running.fleet
    assert fleet.vault is not None
    sealed = fleet.vault.seal(address_seal(endpoint_id), address)

    def step(transaction: Transaction) -> None:
        known = transaction.tx.endpoint(endpoint_id)
        assert known is not None
        transaction.tx.put_endpoint(replace(known, sealed_address=sealed))

    await here.stop()
    await fleet.act(step)
    await here.start()
    return f"/api/notifications/{endpoint_id}"


async def test_an_older_endpoint_whose_host_is_no_name_fails_like_any_other(
    tmp_path: Path, certs: Certificates
) -> None:
    async with notifying_server(tmp_path, certs) as here, hook() as receiver:
        path = await with_address(here, receiver.url, "https://hooks..example.org/x")
        tried = await here.running.post(f"{path}/test", {})
        assert (tried["state"], tried["detail"]) == ("failed", "Its name cannot be resolved.")
        await here.ends(await here.running.worker())
        view = await here.sees(path, lambda one: one["next_try_at"])
        assert view["error"] == "Its name cannot be resolved."


async def test_a_send_that_breaks_unexpectedly_is_a_failed_try_and_is_logged(
    tmp_path: Path, certs: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(host: str, port: int) -> list[str]:
        raise ArithmeticError("nobody expects it")

    async with notifying_server(tmp_path, certs) as here, hook() as receiver:
        await here.stop()
        sender = MessageSender(OutboundConnector((), None, broken), None, PUBLIC, "host")
        here.running.deps.deliverer = Deliverer(here.running.fleet, sender)
        here.running.deps.deliverer.start()
        made = await here.add(receiver.url)
        path = f"/api/notifications/{made['endpoint']['id']}"
        await here.ends(await here.running.worker())
        view = await here.sees(path, lambda one: one["next_try_at"])
        assert view["error"] == "It broke off: ArithmeticError."
        (entry,) = (await here.running.get(f"{path}/history"))["deliveries"]
        assert (entry["ok"], entry["detail"]) == (False, "It broke off: ArithmeticError.")
        assert "nobody expects it" in caplog.text
