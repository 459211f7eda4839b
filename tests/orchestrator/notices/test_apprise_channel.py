"""A channel through Apprise is told as every other: at least once, with a history, a test, a digest, and sealed."""

import asyncio
from pathlib import Path

from tests.delivery.receivers import Certificates, hook
from tests.orchestrator.notices.notifying_server import notifying_server

TOKEN = "AbCdEfGh.123456"


async def test_a_failed_job_reaches_a_service_through_apprise_after_a_failure(
    tmp_path: Path, certs: Certificates
) -> None:
    async with notifying_server(tmp_path, certs) as here, hook(certs.context) as receiver:
        address = receiver.url.replace("https://", "gotifys://").replace("/hook", f"/{TOKEN}")
        made = await here.add(address, "apprise", language="en", digest="none", quiet="")
        path = f"/api/notifications/{made['endpoint']['id']}"
        assert made["endpoint"]["address"] == "gotifys://…3456"
        assert made["secret"] == ""
        assert (await here.running.post(f"{path}/test"))["state"] == "delivered"
        receiver.statuses = [500]
        agent = await here.running.worker()
        await here.ends(agent, name="cats")
        await receiver.has(2)
        await here.sees(path, lambda one: one["next_try_at"])
        here.running.clock.at += 5
        await receiver.has(3)
        assert [one.document["title"] for one in receiver.got[1:]] == ["Job cats failed"] * 2
        await here.sees(path, lambda one: one["status"] == "active")
        history = (await here.running.get(f"{path}/history"))["deliveries"]
        assert [(one["ok"], one["detail"]) for one in history] == [
            *((True, "HTTP 200"), (False, "HTTP 500"), (True, "HTTP 200")),
        ]
        changed = await here.running.http.patch(
            path, json={"digest": "hourly", "address": f"{address}?priority=high"}
        )
        assert (changed.status_code, changed.json()["digest"]) == (200, "hourly")
        for wrong in ("json://example.org", f"{address}?verify=no", "tgram://thisisnotatoken"):
            refused = await here.running.http.patch(path, json={"address": wrong})
            assert refused.status_code == 422, wrong
        audit = await here.running.http.get("/api/audit")
        assert "notification.added" in audit.text
        assert TOKEN not in audit.text


async def test_what_happens_in_quiet_hours_reaches_the_service_in_one_message_when_they_end(
    tmp_path: Path, certs: Certificates
) -> None:
    """The clock of these tests stands at 08:00 in UTC."""
    async with notifying_server(tmp_path, certs) as here, hook(certs.context) as receiver:
        here.running.clock.at = 1_800_000_000.0
        address = receiver.url.replace("https://", "gotifys://").replace("/hook", f"/{TOKEN}")
        await here.add(address, "apprise", language="en", quiet="07:00-09:00")
        agent = await here.running.worker()
        await here.ends(agent, name="cats")
        await here.ends(agent, "completed", name="dogs")
        await asyncio.sleep(0.7)
        assert receiver.got == []
        here.running.clock.at += 3600
        await receiver.has(1)
        said = f"{receiver.got[0].document['title']} {receiver.got[0].document['message']}"
        assert "cats" in said
        assert "dogs" in said
        await here.ends(agent, name="later")
        await receiver.has(2)
        assert "later" in str(receiver.got[1].document)


async def test_a_digest_of_the_hour_reaches_the_service_once_an_hour(
    tmp_path: Path, certs: Certificates
) -> None:
    async with notifying_server(tmp_path, certs) as here, hook(certs.context) as receiver:
        here.running.clock.at = 1_800_000_000.0
        address = receiver.url.replace("https://", "gotifys://").replace("/hook", f"/{TOKEN}")
        made = await here.add(address, "apprise", language="en", digest="hourly", quiet="")
        agent = await here.running.worker()
        for name in ("one", "two"):
            await here.ends(agent, name=name)
        await asyncio.sleep(0.7)
        assert receiver.got == []
        here.running.clock.at += 3600
        await receiver.has(1)
        said = str(receiver.got[0].document)
        assert "one" in said
        assert "two" in said
        await asyncio.sleep(0.7)
        assert len(receiver.got) == 1
        history = await here.running.get(f"/api/notifications/{made['endpoint']['id']}/history")
        assert [one["ok"] for one in history["deliveries"]] == [True]


async def test_without_the_extra_the_channel_is_refused_and_says_how_to_install_it(
    tmp_path: Path, certs: Certificates
) -> None:
    body = {
        "name": "chat",
        "channel": "apprise",
        "address": f"gotifys://example.org/{TOKEN}",
        "events": ["job.failed"],
    }
    async with notifying_server(tmp_path, certs) as here:
        made = await here.running.post("/api/notifications", body)
        await here.stop()
        here.has_apprise = False
        await here.start()
        refused = await here.running.http.post("/api/notifications", json=body)
        assert refused.status_code == 409
        assert "pip install 'simpletuner-fleet[apprise]'" in refused.json()["next"]
        tried = await here.running.post(f"/api/notifications/{made['endpoint']['id']}/test")
        assert (tried["state"], "simpletuner-fleet[apprise]" in tried["detail"]) == ("failed", True)
