"""Mail through a real mail server, and audit entries to a real log receiver, with TLS."""

import email
import email.policy
import re

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.delivery.outbound import OutboundConnector
from simpletuner_fleet.delivery.outcome import DeliveryFailed
from simpletuner_fleet.delivery.smtp import Relay, send_mail
from simpletuner_fleet.delivery.syslog import send_lines
from tests.delivery.receivers import Certificates, LogReceiver, MailServer, listening, until

RELAY = Relay(host="localhost", port=0, security="starttls", sender="fleet@example.org")
SYSLOG = re.compile(
    r'<109>1 (\S+) (\S+) simpletuner-fleet - (\S+) \[simpletuner@32473 ((?:[a-zA-Z]+="(?:[^"\\\]]|\\.)*" ?)+)\] (.*)'
)


@pytest.mark.parametrize("security", ["starttls", "tls"])
async def test_a_mail_arrives_over_tls_after_a_log_in(
    outbound: OutboundConnector, certs: Certificates, security: str
) -> None:
    server = MailServer(password="s3cret", context=certs.context)
    async with listening(server.serve, certs.context if security == "tls" else None) as port:
        relay = replace(RELAY, port=port, security=security, user="fleet", password="s3cret")
        await send_mail(
            outbound, relay, "anna@example.org", "Ö fertig\r\nBcc: x", "Zeile\n.\nÄ\n", "msg_1", 0.0
        )
    [mail] = server.got
    assert (mail.to, mail.user, mail.secure) == (["anna@example.org"], "fleet", True)
    message = email.message_from_string(mail.text, policy=email.policy.default)
    assert message["subject"] == "Ö fertig Bcc: x"
    assert message["message-id"] == "<msg_1@example.org>"
    assert message.get_content().split() == ["Zeile", ".", "Ä"]


async def test_a_password_is_never_sent_in_the_clear(outbound: OutboundConnector) -> None:
    server = MailServer(password="s3cret")
    async with listening(server.serve) as port:
        relay = replace(RELAY, port=port, security="plain", user="fleet", password="s3cret")
        with pytest.raises(DeliveryFailed, match="never sent without TLS"):
            await send_mail(outbound, relay, "anna@example.org", "s", "t", "m", 0.0)
    assert server.got == []


async def test_a_server_without_tls_is_refused_where_tls_was_asked_for(
    outbound: OutboundConnector, certs: Certificates
) -> None:
    server = MailServer(context=certs.context)
    async with listening(server.serve) as port:
        with pytest.raises(DeliveryFailed):
            await send_mail(
                OutboundConnector(), replace(RELAY, port=port), "a@example.org", "s", "t", "m", 0.0
            )
    assert server.got == []


async def test_what_is_said_before_tls_is_not_taken_for_what_is_said_after(
    outbound: OutboundConnector, certs: Certificates
) -> None:
    server = MailServer(context=certs.context, speaks_early=True)
    async with listening(server.serve) as port:
        with pytest.raises(DeliveryFailed, match="out of turn"):
            await send_mail(outbound, replace(RELAY, port=port), "a@example.org", "s", "t", "m", 0.0)
    assert server.got == []


@pytest.mark.parametrize(("code", "hopeless"), [(450, False), (550, True)])
async def test_a_mailbox_that_is_not_there_is_told_from_one_that_is_busy(
    outbound: OutboundConnector, code: int, hopeless: bool
) -> None:
    server = MailServer(refuses=code)
    async with listening(server.serve) as port:
        with pytest.raises(DeliveryFailed, match=str(code)) as failed:
            await send_mail(
                outbound, replace(RELAY, port=port, security="plain"), "a@example.org", "s", "t", "m", 0.0
            )
    assert failed.value.hopeless is hopeless


async def test_a_mail_server_that_takes_no_mail_from_us_says_nothing_of_a_mailbox(
    outbound: OutboundConnector,
) -> None:
    """It would pause the endpoints of everybody, who all have to look then."""
    server = MailServer(refuses_sender=550)
    async with listening(server.serve) as port:
        with pytest.raises(DeliveryFailed, match="550") as failed:
            await send_mail(
                outbound, replace(RELAY, port=port, security="plain"), "a@example.org", "s", "t", "m", 0.0
            )
    assert not failed.value.hopeless


@pytest.mark.parametrize("scheme", ["tls", "tcp"])
async def test_entries_arrive_as_lines_of_rfc_5424(
    outbound: OutboundConnector, certs: Certificates, scheme: str
) -> None:
    entry = AuditEntry(
        7, 1.5, "user.created", "u_1", 'An"na] \\ b', "10.0.0.1", "user", "u_2", {"why": "ü\n"}, "ab"
    )
    receiver = LogReceiver()
    async with listening(receiver.serve, certs.context if scheme == "tls" else None) as port:
        await send_lines(outbound, f"{scheme}://localhost:{port}", "host one", [entry, replace(entry, seq=8)])
        await until(lambda: len(receiver.lines) == 2)
    match = SYSLOG.fullmatch(receiver.lines[0])
    assert match is not None
    assert match.groups()[:3] == ("1970-01-01T00:00:01.500000Z", "hostone", "user.created")
    assert 'seq="7"' in match[4]
    assert 'actorName="An\\"na\\] \\\\ b"' in match[4]
    assert match[5] == '{"why":"\\u00fc\\n"}'
    assert 'seq="8"' in receiver.lines[1]


async def test_a_receiver_of_logs_that_hangs_up_has_not_got_them(outbound: OutboundConnector) -> None:
    with pytest.raises(DeliveryFailed):
        await send_lines(outbound, "tcp://127.0.0.1:9", "h", [])
