"""Provides the hosts of a list as machines: each host is one machine, and never holds two.

A host that cannot be reached does not count as empty. A machine is noted in a file before it is started on its host,
and is listed until the host itself says that it is gone.
"""

import asyncio
import hashlib
from collections import Counter
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.provisioning.offers import ListedMachine, MachineOffer
from simpletuner_fleet.core.provisioning.pool import NAME_BEGINS
from simpletuner_fleet.providers.contract import (
    CreatedMachine,
    MachineOrder,
    ProviderRefused,
    ProviderSurroundings,
    ProviderUnsure,
)
from simpletuner_fleet.providers.forms import insist
from simpletuner_fleet.providers.settings import SettingsReader, declared_offer
from simpletuner_fleet.providers.ssh.client import SshClient, SshHost, read_host
from simpletuner_fleet.providers.ssh.scripts import log_script, look_script, start_script, stop_script

HOSTS_AT_ONCE = 16
SILENT_SHARE = 2
"""Hosts that gave no answer last time have places of their own, one for so many of the others: neither await the other."""
LOOKS_S = 20.0
"""For all hosts together: whoever asks for the list waits no longer than 30 s."""
FRESH_S = 5.0
SERVICES = ("auto", "process")
HOST_KEYS = ("strict", "accept-new")
_SAFE = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")
_PROGRAM = _SAFE | frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ_./+")


class _Turn(Struct, frozen=True):
    """Holds what came of the last time that a host was asked."""

    look: int = 0
    """The number of that look; who was left out since comes before those who were not."""
    was_silent: bool = False


class _HostLook(Struct, frozen=True, kw_only=True):
    """Holds the state of a host as the host reported it, or why it did not."""

    host: SshHost
    machine: str = ""
    runs: bool = True
    can_run: bool = False
    trouble: str = ""


class SshProvider:
    settle_s = 30.0
    sweep_s = 15.0

    def __init__(self, surroundings: ProviderSurroundings) -> None:
        settings = SettingsReader(surroundings.pool)
        self._offer = declared_offer(settings, "ssh")
        self._hosts = _hosts(settings.word("hosts"))
        self._command = settings.word("command", "simpletuner")
        self._install = settings.word("install")
        self._service = settings.word("service", "auto")
        keys, config = settings.word("host_keys", "strict"), settings.word("config")
        self._known_hosts = settings.word("known_hosts")
        settings.finish()
        insist("command", bool(self._command) and set(self._command) <= _PROGRAM, "/PATH/OF/PROGRAM")
        insist("service", self._service in SERVICES, "|".join(SERVICES))
        insist("host_keys", keys in HOST_KEYS, "|".join(HOST_KEYS))
        # A pool's name may hold anything: its folder is named after it all the same, and after no other.
        named = hashlib.sha256(surroundings.pool.name.encode()).hexdigest()[:16]
        self._folder = surroundings.folder / "ssh" / named
        options = ["-F", config] if config else []
        options += ["-o", f"StrictHostKeyChecking={'yes' if keys == 'strict' else keys}"]
        if self._known_hosts or keys != "strict":
            options += ["-o", f"UserKnownHostsFile={self._folder / 'known_hosts'}"]
            options += ["-o", "GlobalKnownHostsFile=none"]
        self._ssh = SshClient(options, surroundings.key, surroundings.environment)
        self._free: tuple[float, list[_HostLook]] = (0.0, [])
        self._turns: dict[str, _Turn] = {}
        self._looks_begun = 0
        self._starts_begun, self._starts_over = Counter[str](), Counter[str]()
        """By host. What it says meanwhile may be from before its machine was made."""

    async def offers(self) -> list[MachineOffer]:
        """Returns an offer for every host that answers, runs nothing of ours, and can run a worker."""
        looked_at, free = self._free
        if asyncio.get_running_loop().time() - looked_at > FRESH_S or not looked_at:
            await self.machines()
            free = self._free[1]
        if free and not any(look.can_run for look in free):
            raise ProviderRefused(
                f"{free[0].host.address} has no program {self._command!r}: install it there, or say with the setting"
                " 'install' what pip shall install"
            )
        return [replace(self._offer, id=look.host.address, single=True) for look in free if look.can_run]

    async def create(self, order: MachineOrder) -> CreatedMachine:
        host = self._host(order.offer.id)
        if host is None:
            raise ProviderRefused(f"{order.offer.id} is no host of the pool any more")
        if not _is_ours(order.name):
            raise ProviderRefused(f"{order.name!r} is no name of a machine")
        self._starts_begun[host.address] += 1
        try:
            return await self._start(host, order)
        finally:
            self._starts_over[host.address] += 1

    async def _start(self, host: SshHost, order: MachineOrder) -> CreatedMachine:
        script = start_script(order.name, order.environment, self._command, self._install, self._service)
        await asyncio.to_thread(self._note, host, order.name)
        try:
            said = (await self._say(host, script)).strip()
        except ProviderRefused:
            await asyncio.to_thread(self._note, host, "")
            raise
        if said.startswith("taken "):
            await asyncio.to_thread(self._note, host, said.removeprefix("taken "))
            raise ProviderRefused(f"{host.address} is taken: {said.removeprefix('taken ')} is there")
        if said != "made":
            raise ProviderUnsure(f"{host.address} said {said[:200]!r}")
        return CreatedMachine(
            provider_id=f"{host.address}/{order.name}", hourly_micros=self._offer.hourly_micros
        )

    async def machines(self) -> list[ListedMachine]:
        looks = await self._looks()
        reached = [look for look in looks if not look.trouble]
        if not reached:
            raise ProviderUnsure("; ".join(look.trouble for look in looks)[:500])
        self._free = (asyncio.get_running_loop().time(), [look for look in reached if not look.machine])
        return [
            ListedMachine(
                provider_id=f"{look.host.address}/{look.machine}",
                name=look.machine,
                runs=look.runs,
                hourly_micros=self._offer.hourly_micros,
                note=look.trouble,
            )
            for look in looks
            if look.machine
        ]

    async def _looks(self) -> list[_HostLook]:
        """Looks at all hosts. One for which the time was too short is like one that does not answer."""
        places = asyncio.Semaphore(HOSTS_AT_ONCE)
        places_of_silent = asyncio.Semaphore(max(1, HOSTS_AT_ONCE // SILENT_SHARE))
        until = asyncio.get_running_loop().time() + LOOKS_S
        self._looks_begun += 1
        number = self._looks_begun

        async def one(host: SshHost) -> _HostLook:
            before = self._turns.get(host.address, _Turn())
            try:
                async with asyncio.timeout_at(until), places_of_silent if before.was_silent else places:
                    self._turns[host.address] = _Turn(number, was_silent=True)
                    look = await self._look(host)
            except TimeoutError:
                begun = await asyncio.to_thread(self._noted, host)
                trouble = f"{host.address} did not answer in {LOOKS_S:g} s"
                return _HostLook(host=host, machine=begun, trouble=trouble)
            self._turns[host.address] = _Turn(number, was_silent=bool(look.trouble))
            return look

        in_turn = sorted(self._hosts, key=lambda host: self._turns.get(host.address, _Turn()).look)
        return await asyncio.gather(*(one(host) for host in in_turn))

    async def _look(self, host: SshHost) -> _HostLook:
        starts_over = self._starts_over[host.address]
        try:
            lines = (await self._say(host, look_script(self._command))).split("\n")
        except (ProviderRefused, ProviderUnsure) as error:
            begun = await asyncio.to_thread(self._noted, host)
            return _HostLook(host=host, machine=begun, trouble=str(error))
        states = [words for line in lines if (words := line.split())]
        machine = next(
            (words[1] for words in states if words[0] in ("runs", "ended") and len(words) == 2), ""
        )
        if not machine and ["free"] not in states:
            return _HostLook(host=host, trouble=f"{host.address} answers with what is not ours")
        if not machine and self._starts_begun[host.address] != starts_over:
            begun = await asyncio.to_thread(self._noted, host)
            trouble = "" if begun else f"{host.address} was asked for a machine just now"
            return _HostLook(host=host, machine=begun, trouble=trouble)
        await asyncio.to_thread(self._note, host, machine)
        return _HostLook(
            host=host,
            machine=machine,
            runs=["ended", machine] not in states,
            can_run=bool(self._install) or ["program"] in states,
        )

    async def destroy(self, provider_id: str) -> None:
        address, _, name = provider_id.rpartition("/")
        host = self._host(address)
        if host is not None and _is_ours(name):
            await self._say(host, stop_script(name))

    async def boot_log(self, provider_id: str) -> str:
        address, _, name = provider_id.rpartition("/")
        host = self._host(address)
        return await self._say(host, log_script(name)) if host is not None and _is_ours(name) else ""

    def _host(self, address: str) -> SshHost | None:
        """Returns the host of an address, even one that is no longer in the list: its machine has to be ended."""
        return next((host for host in self._hosts if host.address == address), None) or read_host(address)

    async def _say(self, host: SshHost, script: str) -> str:
        await asyncio.to_thread(self._keep_known_hosts)
        return await self._ssh.say(host, script)

    def _keep_known_hosts(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file, text = self._folder / "known_hosts", f"{self._known_hosts.strip()}\n"
        if self._known_hosts and (not file.exists() or file.read_text("utf-8") != text):
            file.write_text(text, "utf-8")

    def _note(self, host: SshHost, machine: str) -> None:
        """Writes the note whole or not at all: a host without one counts as empty while it does not answer."""
        file = self._file(host)
        if machine == self._noted(host):
            return
        if machine:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            new = file.with_suffix(".new")
            new.write_text(machine, "utf-8")
            new.replace(file)
        else:
            file.unlink(missing_ok=True)

    def _noted(self, host: SshHost) -> str:
        try:
            return self._file(host).read_text("utf-8").strip()
        except OSError:
            return ""

    def _file(self, host: SshHost) -> Path:
        return self._folder / hashlib.sha256(host.address.encode()).hexdigest()[:16]


def _hosts(text: str) -> list[SshHost]:
    hosts: list[SshHost] = []
    for address in text.replace(",", " ").split():
        host = read_host(address)
        insist("hosts", host is not None, "[USER@]HOST[:PORT],…")
        if host is not None:
            hosts.append(host)
    insist("hosts", bool(hosts), "[USER@]HOST[:PORT],…")
    places = {(host.host, host.port) for host in hosts}
    if len(places) != len(hosts):
        raise Invalid("The provider's setting 'hosts' names one host twice.", path="$.settings")
    return hosts


def _is_ours(name: str) -> bool:
    return name.startswith(f"{NAME_BEGINS}-") and set(name) <= _SAFE
