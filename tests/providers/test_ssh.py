"""Machines that are hosts reached by ssh: a real sshd and real workers, on this machine."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.providers.contract import (
    MachineOrder,
    ProviderRefused,
    ProviderSurroundings,
    ProviderUnsure,
)
from simpletuner_fleet.providers.ssh.provider import SshProvider
from tests.core.provisioning.provisioning_kit import a_pool, an_offer
from tests.e2e.processes import wait_until
from tests.providers.ssh_hosts import SshServer, ssh_server

PROGRAM = str(Path(sys.executable).parent / "simpletuner")
NOBODY = {"SIMPLETUNER_ORCHESTRATOR_URL": "http://127.0.0.1:9", "SIMPLETUNER_WORKER_TOKEN": "jt_one'two"}
LONG_S = 90.0
STUBBORN = """#!/bin/sh
trap 'echo asked' TERM
echo "$SIMPLETUNER_WORKER_TOKEN"
while :; do sleep 0.1; done
"""
PYTHON = r"""#!/bin/sh
# Makes in a moment what `python3 -m venv` and pip need seconds of a processor for.
mkdir -p "$3/bin"
cat > "$3/bin/pip" <<'end'
#!/bin/sh
made="$(dirname "$0")/simpletuner"
printf '#!/bin/sh\necho installed %s' "$3" > "$made"
chmod +x "$made"
end
chmod +x "$3/bin/pip"
"""
UNUSED = httpx2.AsyncClient()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[SshServer]:
    (tmp_path / "host").mkdir()
    with ssh_server(tmp_path / "host") as made:
        if made is None:
            pytest.skip("apt-get cannot bring openssh-server to this machine")
        yield made


def provider_of(
    folder: Path, *hosts: SshServer, key: str | None = None, name: str = "mine", **settings: str
) -> SshProvider:
    given = {
        "hosts": ",".join(host.address for host in hosts),
        "known_hosts": "".join(host.known_hosts for host in hosts),
        "config": "none",
        "command": PROGRAM,
        **settings,
    }
    return SshProvider(
        ProviderSurroundings(
            pool=a_pool(
                name, provider="ssh", settings={name: value for name, value in given.items() if value}
            ),
            key=key or hosts[0].key,
            folder=folder,
            environment={"PATH": os.environ["PATH"]},
            http=UNUSED,
        )
    )


def order(host: SshServer, name: str = "stf-f1-m1") -> MachineOrder:
    return MachineOrder(name=name, offer=an_offer(host.address), environment=NOBODY)


def a_program(host: SshServer, text: str = STUBBORN) -> str:
    file = host.folder / "program"
    file.write_text(text)
    file.chmod(0o700)
    return str(file)


def is_alive(pid: str) -> bool:
    """A process that has ended and that nobody has asked about yet is not."""
    try:
        return "State:\tZ" not in Path("/proc", pid.strip(), "status").read_text()
    except OSError:
        return False


async def becomes(holds: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, holds, "it becomes so", LONG_S)


async def ended(provider: SshProvider, provider_id: str) -> None:
    async with asyncio.timeout(LONG_S):
        while await provider.machines():
            await provider.destroy(provider_id)


async def test_a_worker_is_started_found_by_anybody_never_doubled_and_ended_with_all_it_had(
    host: SshServer, tmp_path: Path
) -> None:
    provider = provider_of(tmp_path, host, price="0.5", gpus="1", gpu_name="A100")
    (offer,) = await provider.offers()
    assert (offer.id, offer.hourly_micros, offer.gpus) == (host.address, 500_000, 1)
    created = await provider.create(order(host))
    log = host.place / "stf-f1-m1" / "log"
    await becomes(lambda: "does not answer" in log.read_text())
    assert (host.place / "stf-f1-m1" / "run").stat().st_mode & 0o077 == 0
    other = provider_of(tmp_path / "elsewhere", host)
    (listed,) = await other.machines()
    assert (listed.provider_id, listed.name, listed.runs, listed.note) == (
        created.provider_id,
        "stf-f1-m1",
        True,
        "",
    )
    assert await other.offers() == [], "a host is one machine"
    pid = (host.place / "stf-f1-m1" / "pid").read_text()
    await other.create(order(host))
    assert (host.place / "stf-f1-m1" / "pid").read_text() == pid, "asked again, it is not started again"
    with pytest.raises(ProviderRefused, match="is taken: stf-f1-m1 is there"):
        await other.create(order(host, "stf-f1-m2"))
    assert "does not answer" in await other.boot_log(created.provider_id)
    await ended(other, created.provider_id)
    assert list(host.place.iterdir()) == []
    assert not is_alive(pid)
    await other.destroy(created.provider_id)


async def test_one_that_does_not_stop_is_asked_once_and_killed_in_the_end(
    host: SshServer, tmp_path: Path
) -> None:
    provider = provider_of(tmp_path, host, command=a_program(host), service="process")
    created = await provider.create(order(host))
    folder = host.place / "stf-f1-m1"
    await becomes(lambda: "jt_one'two" in (folder / "log").read_text())
    await provider.destroy(created.provider_id)
    await becomes(lambda: "asked" in (folder / "log").read_text())
    await provider.destroy(created.provider_id)
    (listed,) = await provider.machines()
    assert listed.runs
    pid = (folder / "pid").read_text().strip()
    (folder / "stopping").write_text("1700000000\n")
    await provider.destroy(created.provider_id)
    assert await provider.machines() == []
    await becomes(lambda: not is_alive(pid))
    await provider.destroy(f"{host.address}/../../x")
    await provider.destroy("stf-f1-m9")


async def test_a_worker_that_ended_is_listed_as_such(host: SshServer, tmp_path: Path) -> None:
    provider = provider_of(tmp_path, host, command=a_program(host, "#!/bin/sh\necho no GPU; exit 3\n"))
    created = await provider.create(order(host))
    async with asyncio.timeout(LONG_S):
        while (await provider.machines())[0].runs:
            pass
    assert await provider.boot_log(created.provider_id) == "no GPU\n"
    await provider.destroy(created.provider_id)
    assert await provider.machines() == []


async def test_only_known_hosts_are_spoken_to_with_the_key_that_is_given(
    host: SshServer, tmp_path: Path
) -> None:
    unknown = provider_of(tmp_path, host, known_hosts="[127.0.0.1]:1 ssh-ed25519 AAAA\n")
    with pytest.raises(ProviderUnsure, match="Host key verification failed"):
        await unknown.machines()
    with pytest.raises(ProviderRefused, match="Host key verification failed"):
        await unknown.create(order(host))
    with pytest.raises(ProviderUnsure, match="Permission denied"):
        await provider_of(tmp_path, host, key=(host.folder / "host_key").read_text()).machines()
    trusting = provider_of(tmp_path, host, name="new", known_hosts="", host_keys="accept-new")
    assert await trusting.machines() == []
    host.stop()
    (host.folder / "host_key").write_bytes((host.folder / "key").read_bytes())
    host.start()
    with pytest.raises(ProviderUnsure, match=r"(?i)host key"):
        await trusting.machines()


async def test_a_host_that_cannot_be_reached_keeps_what_was_begun_there_and_stops_no_other(
    host: SshServer, tmp_path: Path
) -> None:
    (tmp_path / "second").mkdir()
    with ssh_server(tmp_path / "second") as second:
        assert second is not None
        (second.folder / "key.pub").write_bytes((host.folder / "key.pub").read_bytes())
        provider = provider_of(tmp_path, host, second, command=a_program(host), service="process")
        assert len(await provider.offers()) == 2
        created = await provider.create(order(second))
        second.stop()
        (listed,) = await provider.machines()
        assert (listed.name, listed.runs) == ("stf-f1-m1", True)
        assert "Connection refused" in (listed.note or "")
        assert [offer.id for offer in await provider.offers()] == [host.address]
        with pytest.raises(ProviderRefused, match="Connection refused"):
            await provider.destroy(created.provider_id)
        host.stop()
        with pytest.raises(ProviderUnsure, match="Connection refused"):
            await provider.machines()
        second.start()
        await provider.destroy(created.provider_id)
        (second.place / "stf-f1-m1" / "stopping").write_text("1700000000\n")
        await provider.destroy(created.provider_id)
        assert await provider.machines() == []


async def test_what_is_not_there_is_installed_if_the_pool_says_how(host: SshServer, tmp_path: Path) -> None:
    nowhere = str(host.folder / "nowhere")
    with pytest.raises(ProviderRefused, match="has no program"):
        await provider_of(tmp_path, host, command=nowhere).offers()
    (host.folder / "bin").mkdir()
    (host.folder / "bin" / "python3").write_text(PYTHON)
    (host.folder / "bin" / "python3").chmod(0o700)
    provider = provider_of(tmp_path, host, command=nowhere, install="simpletuner-fleet==1.0")
    assert len(await provider.offers()) == 1
    created = await provider.create(order(host))
    await becomes(
        lambda: "installed simpletuner-fleet==1.0" in (host.place / "stf-f1-m1" / "log").read_text()
    )
    await ended(provider, created.provider_id)
    assert len(await provider_of(tmp_path, host, command=nowhere).offers()) == 1, "it stays for the next"


def test_what_is_no_host_or_would_be_an_option_is_refused() -> None:
    def refused(**settings: str) -> str:
        pool = a_pool(provider="ssh", settings=settings)
        with pytest.raises(Invalid) as caught:
            SshProvider(
                ProviderSurroundings(pool=pool, key=None, folder=Path("/x"), environment={}, http=UNUSED)
            )
        return caught.value.detail

    for hosts in ("", "-oProxyCommand=sh", "h:99999", "h;rm"):
        assert "[USER@]HOST[:PORT],…" in refused(hosts=hosts), hosts
    assert "one host twice" in refused(hosts="a@h, b@h")
    assert "/PATH/OF/PROGRAM" in refused(hosts="h", command="a b")
    assert "strict|accept-new" in refused(hosts="h", host_keys="no")
    assert "auto|process" in refused(hosts="h", service="init")
    assert "no setting nodes" in refused(hosts="h", nodes="2")


ANSWERS_OR_HANGS = """#!/bin/sh
case "$*" in
    *off-*) exec sleep 60 ;;
    *slow-*) cat > /dev/null; sleep 0.3; echo program; echo free ;;
    *) cat > /dev/null; echo program; echo free ;;
esac
"""


def provider_of_names(folder: Path, *hosts: str) -> SshProvider:
    """A provider whose `ssh` answers for some hosts, and hangs for those whose name begins with `off-`."""
    programs = folder / "programs"
    programs.mkdir()
    (programs / "ssh").write_text(ANSWERS_OR_HANGS)
    (programs / "ssh").chmod(0o700)
    pool = a_pool(provider="ssh", settings={"hosts": ",".join(hosts)})
    path = f"{programs}:{os.environ['PATH']}"
    return SshProvider(
        ProviderSurroundings(pool=pool, key=None, folder=folder, environment={"PATH": path}, http=UNUSED)
    )


async def test_hosts_that_are_off_keep_those_that_are_on_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simpletuner_fleet.providers.ssh.provider.LOOKS_S", 1.5)
    monkeypatch.setattr("simpletuner_fleet.providers.ssh.provider.HOSTS_AT_ONCE", 2)
    provider = provider_of_names(tmp_path, "off-1", "off-2", "on-1", "on-2")
    async with asyncio.timeout(20):
        with pytest.raises(ProviderUnsure, match=r"did not answer in 1\.5 s"):
            await provider.machines()
        assert await provider.machines() == []
        offers = await provider.offers()
    assert {offer.id for offer in offers} == {"on-1", "on-2"}
    assert all(offer.single for offer in offers)


async def test_of_hosts_that_are_too_many_for_one_look_each_has_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simpletuner_fleet.providers.ssh.provider.LOOKS_S", 1.0)
    monkeypatch.setattr("simpletuner_fleet.providers.ssh.provider.HOSTS_AT_ONCE", 2)
    slow = {f"slow-{number}" for number in range(12)}
    provider = provider_of_names(tmp_path, "off-1", "off-2", *sorted(slow))
    offered: set[str] = set()
    for _ in range(16):
        with suppress(ProviderUnsure):
            await provider.machines()
            offered |= {offer.id for offer in await provider.offers()}
        if offered == slow:
            break
    assert offered == slow


async def test_a_machine_on_a_host_for_which_there_was_no_time_stays_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simpletuner_fleet.providers.ssh.provider.LOOKS_S", 1.5)
    monkeypatch.setattr("simpletuner_fleet.providers.ssh.client.CALL_S", 1.0)
    provider = provider_of_names(tmp_path, "on-1", "off-1")
    with pytest.raises(ProviderUnsure):
        await provider.create(MachineOrder(name="stf-f1-m1", offer=an_offer("off-1"), environment=NOBODY))
    (kept,) = await provider.machines()
    assert (kept.name, kept.provider_id) == ("stf-f1-m1", "off-1/stf-f1-m1")


STARTS_SLOWLY = """#!/bin/sh
script=$(cat)
case "$script" in
    *"ln -s"*) touch {folder}/begun; while [ ! -e {folder}/over ]; do sleep 0.05; done; exit 1 ;;
    *) echo program; echo free ;;
esac
"""


async def test_a_look_while_a_machine_is_started_does_not_forget_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simpletuner_fleet.providers.ssh.client.CALL_S", 20.0)
    provider = provider_of_names(tmp_path, "off-1", "two")
    (tmp_path / "programs" / "ssh").write_text(STARTS_SLOWLY.format(folder=tmp_path))
    asked = MachineOrder(name="stf-f1-m1", offer=an_offer("off-1"), environment=NOBODY)
    creating = asyncio.create_task(provider.create(asked))
    await becomes((tmp_path / "begun").exists)
    (listed,) = await provider.machines()
    assert (listed.name, listed.provider_id, listed.runs) == ("stf-f1-m1", "off-1/stf-f1-m1", True)
    assert [offer.id for offer in await provider.offers()] == ["two"]
    (tmp_path / "over").touch()
    with pytest.raises(ProviderUnsure):
        await creating
    (tmp_path / "programs" / "ssh").write_text(ANSWERS_OR_HANGS)
    monkeypatch.setattr("simpletuner_fleet.providers.ssh.provider.LOOKS_S", 1.5)
    (kept,) = await provider.machines()
    assert kept.name == "stf-f1-m1", "whether it was made only the host can say"
    (tmp_path / "programs" / "ssh").write_text(ANSWERS_OR_HANGS.replace("off-", "nobody"))
    assert await provider.machines() == []
