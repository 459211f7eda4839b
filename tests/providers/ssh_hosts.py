"""A real sshd on this machine's loopback, from Debian's packages, which are unpacked and not installed.

Each host is one more sshd, with keys and a home of its own; its one user has the number of whoever runs the tests.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devtools.ports import free_port
from tests.docs.debian_tools import unpacked
from tests.e2e.processes import SYSTEMS_PATH, wait_until

PACKAGES = ("openssh-server", "openssh-client", "libnss-wrapper")
PRIVATE_PLACE = Path("/run/sshd")
"""Where sshd, started by root, shuts in whoever has not logged in yet."""
CONFIG = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
SetEnv PATH={path}
KexAlgorithms curve25519-sha256
"""
"""The usual exchange of keys, safe from computers to come, takes ssh five times as long as all else it does."""


class SshServer:
    def __init__(self, files: Path, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.home = folder / "home"
        self.home.mkdir()
        self._files = files
        for name in ("host_key", "key"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True, timeout=60
            )
        text = CONFIG.format(port=self.port, folder=folder, path=f"{folder}/bin:{SYSTEMS_PATH}")
        (folder / "sshd_config").write_text(text)
        user, group = os.getuid(), os.getgid()
        people = (
            f"fleet:x:{user}:{group}::{self.home}:/bin/sh\nsshd:x:65534:65534::{PRIVATE_PLACE}:/bin/false\n"
        )
        (folder / "passwd").write_text(people)
        (folder / "group").write_text(f"fleet:x:{group}:\nnogroup:x:65534:\n")
        self._running: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"fleet@127.0.0.1:{self.port}"

    @property
    def key(self) -> str:
        return (self.folder / "key").read_text()

    @property
    def known_hosts(self) -> str:
        return f"[127.0.0.1]:{self.port} {(self.folder / 'host_key.pub').read_text()}"

    @property
    def place(self) -> Path:
        """Where machines are on this host."""
        return self.home / ".simpletuner-fleet"

    def start(self) -> None:
        if os.getuid() == 0:
            PRIVATE_PLACE.mkdir(mode=0o755, exist_ok=True)
        (wrapper,) = self._files.glob("usr/lib/*/libnss_wrapper.so")
        libraries = [*self._files.glob("usr/lib/*/"), *self._files.glob("lib/*/")]
        log = self.folder / "log"
        with log.open("wb") as out:
            self._running = subprocess.Popen(
                [self._files / "usr" / "sbin" / "sshd", "-D", "-e", "-f", self.folder / "sshd_config"],
                env={
                    "LD_PRELOAD": str(wrapper),
                    "LD_LIBRARY_PATH": os.pathsep.join(str(folder) for folder in libraries),
                    "NSS_WRAPPER_PASSWD": str(self.folder / "passwd"),
                    "NSS_WRAPPER_GROUP": str(self.folder / "group"),
                    "PATH": SYSTEMS_PATH,
                },
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        wait_until(lambda: "listening" in log.read_text(), "sshd listens", 60.0)

    def stop(self) -> None:
        if self._running:
            self._running.terminate()
            self._running.wait(30)
            self._running = None


@contextmanager
def ssh_server(folder: Path) -> Iterator[SshServer | None]:
    """Gives None where apt cannot bring the packages."""
    files = unpacked("openssh", PACKAGES)
    if files is None:
        yield None
        return
    server = SshServer(files, folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
