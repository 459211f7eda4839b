"""A lead is told by mail of what waits for them, and decides by the link in it: once, in time, and nobody else."""

import email
import email.policy
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from devtools.fuzz.in_process_server import InProcessServer
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.restoring import LINKS_SINCE
from simpletuner_fleet.delivery.outbound import OutboundConnector
from simpletuner_fleet.delivery.sender import MessageSender
from simpletuner_fleet.delivery.smtp import Relay
from simpletuner_fleet.orchestrator.notices.deliverer import Deliverer
from tests.delivery.conftest import LOOPBACK
from tests.delivery.receivers import Certificates, Hook, MailServer, hook, listening, until

PUBLIC = "https://fleet.example.org"
COMMAND = {"trainer": "command", "settings": {"command": ["true"]}, "resources": {"gpus": 0}}


class Lab(Struct):
    """Ann submits, Lea and Max lead their team, Tom is in it, and Ida leads another."""

    server: InProcessServer
    people: dict[str, dict[str, str]]
    mail: MailServer
    chat: Hook

    async def submit(self, **more: Any) -> str:
        body = {"config": COMMAND, "target": "worker", **more}
        answer = await self.server.good("POST", "/api/queue/submit", body, self.people["ann"])
        assert answer["status"] == "blocked"
        return str(answer["job_id"])

    async def link(self, number: int) -> str:
        """The secret of the link in the mail of this number."""
        await until(lambda: len(self.mail.got) > number)
        text = email.message_from_string(self.mail.got[number].text, policy=email.policy.default)
        address = re.search(rf"{PUBLIC}/approve\?k=(\S+)", text.get_content())
        assert address, text.get_content()
        return address[1]

    async def decide(self, secret: str, verdict: str = "approve", **headers: str) -> tuple[int, str]:
        body = {"k": secret, "verdict": verdict, "note": "by mail"}
        answer = await self.server.ask("POST", "/api/approvals/link", body, headers)
        return answer.status, json.loads(answer.body).get("code", "")

    async def state(self, job: str) -> str:
        return str((await self.server.good("GET", f"/api/jobs/{job}"))["status"])


@asynccontextmanager
async def lab(tmp_path: Path, certs: Certificates, **policy: Any) -> AsyncIterator[Lab]:
    server = await InProcessServer(tmp_path / "server", 1, Policy(**policy)).open()
    mail = MailServer(context=certs.context)
    async with listening(mail.serve) as port, hook(certs.context) as chat:
        relay = Relay(host="localhost", port=port, security="starttls", sender="fleet@example.org")
        sender = MessageSender(OutboundConnector(LOOPBACK, certs.ca), relay, PUBLIC, "host")
        deliverer = server.deps.deliverer = Deliverer(server.fleet, sender)
        deliverer.start()
        try:
            people = {name: await server.user(name, "member") for name in ("ann", "lea", "max", "tom", "ida")}
            await server.good("POST", "/api/teams", {"name": "lab"})
            await server.good("POST", "/api/teams", {"name": "other"})
            for name, role in (("ann", "member"), ("lea", "lead"), ("max", "lead"), ("tom", "member")):
                await server.good("PUT", f"/api/teams/lab/members/{name}", {"role": role})
            await server.good("PUT", "/api/teams/other/members/ida", {"role": "lead"})
            rule = {"name": "two leads", "trainer": "command", "team": "lab", "count": 2, "expires_s": 7200}
            await server.good("POST", "/api/approvals/rules", rule)
            for name in ("lea", "tom", "ida", "ann"):
                body = {"name": "mail", "channel": "email", "address": f"{name}@example.org"}
                asked = {**body, "events": ["approval.needed"]}
                await server.good("POST", "/api/notifications", asked, people[name])
            chats = {"name": "chat", "channel": "slack", "address": chat.url, "events": ["approval.needed"]}
            await server.good("POST", "/api/notifications", chats, people["max"])
            yield Lab(server, people, mail, chat)
        finally:
            await deliverer.stop()
            await server.close()


async def test_a_lead_decides_by_the_link_in_the_mail_and_only_once(
    tmp_path: Path, certs: Certificates
) -> None:
    async with lab(tmp_path, certs) as here:
        server, job = here.server, await here.submit(name="cats")
        secret = await here.link(0)
        await here.chat.has(1)
        assert here.mail.got[0].to == ["lea@example.org"], "neither who leads nothing, nor whose job it is"
        assert "/approve?k=" not in here.chat.got[0].document["text"], "a chat has many readers"

        for _ in range(2):  # as a scanner of links does, and then the person
            for target in (f"/approve?k={secret}", f"/api/approvals/link?k={secret}"):
                for method in ("GET", "HEAD"):
                    assert (await server.ask(method, target)).status == 200
        looked = await server.good("GET", f"/api/approvals/link?k={secret}", None, {})
        assert (looked["job_id"], looked["approver"], looked["owner_name"]) == (job, "lea", "ann")
        assert (await server.good("GET", f"/api/approvals/{job}"))["votes"] == []

        assert (await here.decide(secret, origin="https://evil.example"))[0] == 403
        assert (await server.good("GET", f"/api/approvals/{job}"))["votes"] == []
        assert (await here.decide(secret))[0] == 200
        votes = (await server.good("GET", f"/api/approvals/{job}"))["votes"]
        assert [(one["name"], one["note"]) for one in votes] == [("lea", "by mail")]
        assert await here.decide(secret) == (404, "approval_link_over")
        assert await here.decide(secret, "reject") == (404, "approval_link_over"), "it was used to approve"
        assert await here.state(job) == "blocked"
        page = await server.ask("GET", f"/approve?k={secret}")
        assert b"no longer works" in page.body
        entries = (await server.good("GET", "/api/audit?event_type=job.approval_link_used"))["entries"]
        assert [(one["actor"], one["details"]) for one in entries] == [("lea", {"verdict": "approve"})]
        assert secret not in json.dumps(await server.good("GET", "/api/audit?limit=500"))

        other = await here.submit(name="dogs")
        assert (await here.decide(await here.link(1), "reject"))[0] == 200
        ended = await server.good("GET", f"/api/jobs/{other}")
        assert (ended["status"], ended["error"]) == ("cancelled", "rejected by lea: by mail")


async def test_a_link_is_worth_what_its_approver_may_at_that_moment(
    tmp_path: Path, certs: Certificates
) -> None:
    async with lab(tmp_path, certs) as here:
        server = here.server
        job = await here.submit()
        secret = await here.link(0)
        tampered = secret[:-6] + ("A" if secret[-6] != "A" else "B") + secret[-5:]
        assert server.fleet.vault is not None
        elsewhere = server.fleet.vault.seal("endpoint n_1 address", "{}").translate(str.maketrans("+/", "-_"))
        for wrong in (tampered, elsewhere, "x", "", "é", "A" * 1_900, secret * 20):
            assert (await here.decide(wrong))[0] in (404, 422), wrong

        await server.good("PUT", "/api/teams/lab/members/lea", {"role": "member"})
        assert (await here.decide(secret))[0] == 403, "leads no more"
        await server.good("PUT", "/api/teams/lab/members/lea", {"role": "lead"})
        lea = next(
            one for one in (await server.good("GET", "/api/admin/users"))["users"] if one["name"] == "lea"
        )
        await server.good("PATCH", f"/api/admin/users/{lea['id']}", {"disabled": True})
        assert await here.decide(secret) == (404, "approval_link_over"), "disabled"
        await server.good("PATCH", f"/api/admin/users/{lea['id']}", {"disabled": False})
        since = str(server.clock.at)
        await server.fleet.act(lambda transaction: transaction.tx.put_setting(LINKS_SINCE, since))
        assert await here.decide(secret) == (404, "approval_link_over"), "from before a restore"
        await server.fleet.act(lambda transaction: transaction.tx.delete_setting(LINKS_SINCE))
        server.clock.at += 7200
        assert await here.decide(secret) == (404, "approval_link_over"), "too late"
        assert await here.state(job) == "blocked"
        server.clock.at -= 7200
        assert (await here.decide(secret))[0] == 200


async def test_without_a_life_there_are_no_links_and_nobody_else_turns_a_mailbox_to_themselves(
    tmp_path: Path, certs: Certificates
) -> None:
    async with lab(tmp_path, certs, approval_link_s=0.0) as here:
        await here.submit()
        await until(lambda: bool(here.mail.got))
        assert "/approve?k=" not in here.mail.got[0].text
        mine = (await here.server.good("GET", "/api/notifications", None, here.people["lea"]))["endpoints"]
        turned = {"address": "mallory@example.org"}
        answer = await here.server.ask(
            "PATCH", f"/api/notifications/{mine[0]['id']}", turned, here.server.admin
        )
        assert (answer.status, json.loads(answer.body)["code"]) == (403, "not_yours")
