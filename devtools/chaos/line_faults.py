"""Faults of what stands between a worker and the orchestrator: bad lines, dead forwarders, boxes that answer for others."""

import asyncio

from devtools.chaos.injector import NETWORK, WORKER, Fault, FaultInjector, FaultKind, Strike, Undo
from devtools.chaos.proxy import Mischief, Proxy, Rule

CALLS = {
    "register": b"/api/workers/register",
    "heartbeat": b"/api/workers/heartbeat",
    "stream": b"/api/workers/stream",
    "accept": b"/accept ",
    "report": b"/status ",
    "log": b"/logs?",
    "manifest": b"/manifests ",
}
"""What a worker asks, by the name of the fault and what its first line has."""
STATUSES = (200, 204, 301, 307, 400, 401, 403, 404, 405, 407, 410, 413, 429, 500, 502, 503)
EVERYTHING = b"/api/workers/"
KILLED_WITHIN_S = 0.03
HTML = b"<html><body>somebody else</body></html>"


def proxy_of(injector: FaultInjector, fault: Fault) -> Proxy:
    proxy = injector.worker(fault).proxy
    assert proxy is not None
    return proxy


def foreign(status: int, body: bytes = HTML) -> bytes:
    more = "Location: http://127.0.0.1:9/\r\n" if 300 <= status < 400 else ""
    head = f"HTTP/1.1 {status} Foreign\r\n{more}Content-Type: text/html\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


def healing(proxy: Proxy) -> Undo:
    async def undo() -> None:
        proxy.heal()
        proxy.drop()

    return undo


def one_rule(rule: Rule) -> Strike:
    async def strike(injector: FaultInjector, fault: Fault) -> Undo:
        proxy = proxy_of(injector, fault)
        proxy.rule = rule
        proxy.drop()
        return healing(proxy)

    return strike


def one_way(*, to_server: bool) -> Strike:
    async def strike(injector: FaultInjector, fault: Fault) -> Undo:
        proxy = proxy_of(injector, fault)
        proxy.cut(to_server=to_server, to_client=not to_server)
        return healing(proxy)

    return strike


async def slow_line(injector: FaultInjector, fault: Fault) -> Undo:
    proxy = proxy_of(injector, fault)
    proxy.slow_down()
    return healing(proxy)


async def forwarder_dead(injector: FaultInjector, fault: Fault) -> Undo:
    """It refuses connections in the orchestrator's name, which lives on behind it."""
    proxy = proxy_of(injector, fault)
    await proxy.close()
    return proxy.start


def server_killed_at(call: bytes) -> Strike:
    """kill -9 within milliseconds of a call: before its commit, after it, or as it is answered."""

    async def strike(injector: FaultInjector, fault: Fault) -> Undo:
        proxy, server = proxy_of(injector, fault), injector.fleet.server

        over = asyncio.Event()

        async def kill() -> None:
            await asyncio.sleep(fault.pick * KILLED_WITHIN_S)
            # A kill after the end would be nobody's, and nobody would start the server again.
            if not over.is_set():
                server.kill()

        proxy.rule = Rule(call, Mischief.TELL, tell=kill)

        async def undo() -> None:
            over.set()
            proxy.heal()
            if not server.alive:
                await injector.fleet.start_server()

        return undo

    return strike


LINE_KINDS = {
    **{
        f"foreign_{status}": FaultKind(2, one_rule(Rule(EVERYTHING, Mischief.ANSWER, foreign(status))))
        for status in STATUSES
    },
    **{
        f"foreign_at_{name}": FaultKind(2, one_rule(Rule(call, Mischief.ANSWER, foreign(502))))
        for name, call in CALLS.items()
    },
    **{
        f"answer_lost_of_{name}": FaultKind(2, one_rule(Rule(call, Mischief.SWALLOW)))
        for name, call in CALLS.items()
        if name != "stream"
    },
    **{
        f"answer_cut_of_{name}": FaultKind(2, one_rule(Rule(call, Mischief.TRUNCATE)))
        for name, call in CALLS.items()
        if name != "stream"
    },
    **{
        f"server_killed_at_{name}": FaultKind(2, server_killed_at(call), (NETWORK, WORKER))
        for name, call in CALLS.items()
    },
    "cut_to_server": FaultKind(4, one_way(to_server=True)),
    "cut_to_worker": FaultKind(4, one_way(to_server=False)),
    "slow_line": FaultKind(4, slow_line),
    "forwarder_dead": FaultKind(6, forwarder_dead),
}
"""All need a worker behind a proxy."""
