"""Runs scripts on hosts with the system's ssh: sets its options and host keys, and interprets its exit status."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from simpletuner_fleet.providers.commands import run_command
from simpletuner_fleet.providers.contract import ProviderRefused, ProviderUnsure

CONNECT_S = 10
CALL_S = 25.0
SSH_FAILED = 255
NEVER_REACHED = (
    "permission denied",
    "host key verification failed",
    "could not resolve hostname",
    "connection refused",
    "no route to host",
    "no matching host key",
    "identification has changed",
)
"""Parts of what ssh says when it has never got as far as to run anything."""
OPTIONS = (
    "BatchMode=yes",
    f"ConnectTimeout={CONNECT_S}",
    "ConnectionAttempts=1",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "ControlMaster=no",
    "ControlPath=none",
    "ForwardAgent=no",
    "ForwardX11=no",
    "ClearAllForwardings=yes",
    "PermitLocalCommand=no",
    "UpdateHostKeys=no",
    "RequestTTY=no",
    "LogLevel=ERROR",
)
_HOST = re.compile(
    r"(?:(?P<user>[A-Za-z_][A-Za-z0-9_.-]*)@)?(?P<host>[A-Za-z0-9][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+\])(?::(?P<port>\d{1,5}))?"
)


class SshHost(Struct, frozen=True, kw_only=True):
    address: str
    """As the pool has it."""
    host: str
    user: str = ""
    port: int | None = None

    def words(self) -> list[str]:
        named = [*(("-l", self.user) if self.user else ()), *(("-p", str(self.port)) if self.port else ())]
        return [*named, "--", self.host]


def read_host(address: str) -> SshHost | None:
    """Returns None for what is not an address: it becomes an argument of a command."""
    parts = _HOST.fullmatch(address)
    if parts is None or not 0 < int(parts["port"] or 22) < 65_536:
        return None
    port = int(parts["port"]) if parts["port"] else None
    return SshHost(address=address, host=parts["host"].strip("[]"), user=parts["user"] or "", port=port)


class SshClient:
    def __init__(self, options: Sequence[str], key: str | None, environment: dict[str, str]) -> None:
        self._options = list(options)
        self._key = key
        agent = os.environ.get("SSH_AUTH_SOCK")
        self._environment = {**environment, **({"SSH_AUTH_SOCK": agent} if agent and not key else {})}

    async def say(self, host: SshHost, script: str) -> str:
        """Runs the script on the host and returns what it printed. Raises ProviderRefused if it surely was not run."""
        with _shown(self._key) as identity:
            words = [*self._options, *identity]
            for option in OPTIONS:
                words += ["-o", option]
            command = ["ssh", *words, *host.words(), "exec sh -s"]
            end = await run_command(command, self._environment, script, within_s=CALL_S, asked=host.address)
        if end.status == 0:
            return end.printed
        if end.status == SSH_FAILED and any(part in end.complained.lower() for part in NEVER_REACHED):
            raise ProviderRefused(f"{host.address}: {end.complained}")
        raise ProviderUnsure(f"{host.address}: {end.complained}")


@contextmanager
def _shown(key: str | None) -> Iterator[list[str]]:
    """Yields the options that give the key to ssh.

    The key is in a file without a name, only while ssh needs it: it is on no disk, and is gone when this process ends.
    """
    if key is None:
        yield []
        return
    with os.fdopen(os.memfd_create("key"), "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(key.strip() + "\n")
        file.flush()
        path = Path("/proc") / str(os.getpid()) / "fd" / str(file.fileno())
        yield ["-i", str(path), "-o", "IdentitiesOnly=yes"]
