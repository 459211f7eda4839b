"""Makes the client by which a worker reaches its orchestrators, and says whom its shims trust."""

import asyncio
import logging
import os
import ssl
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from simpletuner_fleet.agent.state_dir import write_whole
from simpletuner_fleet.agent.wire.addresses import Address
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.client.trust import Choices, PinnedContext, context_for_async

log = logging.getLogger(__name__)

PINNED = "pinned.pem"
Keep = Callable[[ssl.SSLContext], None]
"""Is told whom the worker trusts, once that is known. It may block."""


class ShimTrust(NamedTuple):
    """Holds the TLS settings with which a shim that must report by itself verifies the orchestrator."""

    cafile: str | None = None
    pinned_certfile: str | None = None
    no_verify: bool = False


async def client_for(
    urls: Sequence[str], tls: Choices, token: Callable[[], str], keep: Keep = lambda context: None
) -> OrchestratorClient:
    """Begins at the first address whose certificate can be fetched; the others' are fetched when they are needed.

    So is the first one's where no orchestrator answers now: a worker that is started again meanwhile takes up what runs.
    Raises TrustError.
    """

    async def context_of(url: str) -> ssl.SSLContext | None:
        context = await context_for_async(url, tls, _warn)
        if context is not None:
            await asyncio.to_thread(keep, context)
        return context

    def address(url: str) -> Address:
        return Address(url, lambda: context_of(url))

    for url in urls:
        try:
            context = await context_of(url)
        except OSError:
            continue
        return OrchestratorClient(url, token, context, [address(other) for other in urls if other != url])
    first, *others = urls
    return OrchestratorClient(first, token, lambda: context_of(first), [address(other) for other in others])


def keeper(folder: Path) -> Keep:
    """Writes a pinned certificate down for shims, which may outlive the agent and report by themselves."""

    def keep(context: ssl.SSLContext) -> None:
        if not isinstance(context, PinnedContext):
            return
        try:
            write_whole(folder / PINNED, ssl.DER_cert_to_PEM_cert(context.certificate).encode())
        except OSError as error:
            log.warning("the pinned certificate could not be written down: %s", error)

    return keep


def shim_trust(tls: Choices, folder: Path) -> ShimTrust:
    """Names files in full: a shim works in the folder of its attempt. It trusts nobody whom the worker would not."""
    if tls.fingerprint:
        return ShimTrust(pinned_certfile=str(folder / PINNED))
    if tls.ca_cert:
        return ShimTrust(cafile=os.path.abspath(tls.ca_cert))
    return ShimTrust(no_verify=tls.no_verify)


def _warn(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
