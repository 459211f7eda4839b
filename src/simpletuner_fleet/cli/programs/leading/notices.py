"""Builds from the settings what sends the server's messages to mail servers, chats and webhooks."""

import argparse
import socket
import ssl
from ipaddress import ip_network
from urllib.parse import unquote, urlsplit

from simpletuner_fleet.cli.frame.errors import usage
from simpletuner_fleet.core.mail_addresses import MAIL
from simpletuner_fleet.delivery.apprise.sending import AppriseSender, is_installed
from simpletuner_fleet.delivery.outbound import OutboundConnector
from simpletuner_fleet.delivery.sender import MessageSender
from simpletuner_fleet.delivery.smtp import Relay
from simpletuner_fleet.languages import _

SECURITY = {"smtps": "tls", "smtp": "starttls", "smtp+plain": "plain"}
PORTS = {"smtps": 465, "smtp": 587, "smtp+plain": 25}


def outbound_of(args: argparse.Namespace) -> OutboundConnector:
    """Returns where the server may connect of its own accord: to notify people, and to providers that were added."""
    try:
        return OutboundConnector([ip_network(one) for one in args.notify_networks], args.notify_ca)
    except (OSError, ssl.SSLError):
        raise usage(
            _("%(file)s is not a file of certificates", file=args.notify_ca),
            _("--notify-ca names certificate authorities in PEM"),
            _("verify the path"),
        ) from None


def sender_of(args: argparse.Namespace, outbound: OutboundConnector) -> MessageSender:
    apprise = AppriseSender() if is_installed() else None
    return MessageSender(outbound, relay_of(args), args.public_url or "", socket.gethostname(), apprise)


def relay_of(args: argparse.Namespace) -> Relay | None:
    if not args.smtp_url:
        return None
    parts = urlsplit(args.smtp_url)
    user = unquote(parts.username or "")
    sender = args.smtp_from or user
    if not MAIL.fullmatch(sender):
        raise usage(
            _("there is no address that mails are sent from"),
            _("the user of --smtp-url is not an e-mail address"),
            "--smtp-from fleet@example.org",
        )
    return Relay(
        host=parts.hostname or "",
        port=parts.port or PORTS[parts.scheme],
        security=SECURITY[parts.scheme],
        sender=sender,
        user=user if args.smtp_password else "",
        password=args.smtp_password or "",
    )
