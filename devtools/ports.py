"""Ports for servers that are killed and started again at the same address while many others run beside them."""

import fcntl
import os
import socket
import tempfile
from pathlib import Path

FIRST = 10_240
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
USUAL_END = 32_768


def free_port(host: str = "127.0.0.1") -> int:
    """Returns a port that nobody on this machine is given a second time, until all have had their turn.

    None of those that the kernel hands to outgoing connections: while a server is down, one of them could take its port,
    even a client that calls the dead server and so meets itself.
    """
    end = max(_first_ephemeral(), FIRST + 1)
    turns = Path(tempfile.gettempdir()) / f"simpletuner-ports-{os.getuid()}"
    with turns.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        port = int(file.read() or FIRST)
        for _ in range(FIRST, end):
            port = port + 1 if FIRST <= port < end - 1 else FIRST
            if _can_be_bound(host, port):
                file.truncate(0)
                file.write(str(port))
                return port
    raise OSError(f"every port from {FIRST} to {end} is taken")


def _first_ephemeral() -> int:
    try:
        return int(EPHEMERAL.read_text().split()[0])
    except OSError:
        return USUAL_END


def _can_be_bound(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
