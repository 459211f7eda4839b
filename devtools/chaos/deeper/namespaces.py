"""A network namespace for one worker: packets get lost in one direction, and neither end is told, not even its kernel."""

import os
import shutil
import subprocess

NOBODYS = "02:00:00:00:00:99"
"""The address of no card: whatever goes there is lost on the way."""
SUBNETS = 1 << 14


class NetworkCell:
    """Two ends of one wire, `outer` here and `inner` within the namespace."""

    def __init__(self) -> None:
        number = os.getpid() % SUBNETS
        third, fourth = number >> 6, (number & 63) * 4
        self.name = f"chaos-{number}"
        self.outer, self.inner = f"10.231.{third}.{fourth + 1}", f"10.231.{third}.{fourth + 2}"
        self._outer_card, self._inner_card = f"cc{number}o", f"cc{number}i"

    @property
    def command(self) -> tuple[str, ...]:
        """What begins the command of a program that is to live in it."""
        return (str(shutil.which("ip")), "netns", "exec", self.name)

    def open(self) -> bool:
        """False where it cannot be made: for want of root, of `ip`, or of a kernel that can."""
        if os.geteuid() != 0 or shutil.which("ip") is None:
            return False
        try:
            _ip("netns", "add", self.name)
            _ip("link", "add", self._outer_card, "type", "veth", "peer", "name", self._inner_card)
            _ip("link", "set", self._inner_card, "netns", self.name)
            _ip("addr", "add", f"{self.outer}/30", "dev", self._outer_card)
            _ip("link", "set", self._outer_card, "up")
            self._inside("addr", "add", f"{self.inner}/30", "dev", self._inner_card)
            self._inside("link", "set", self._inner_card, "up")
            self._inside("link", "set", "lo", "up")
        except subprocess.CalledProcessError:
            self.close()
            return False
        return True

    def close(self) -> None:
        """The wire goes with it."""
        for words in (("link", "del", self._outer_card), ("netns", "del", self.name)):
            subprocess.run(["ip", *words], capture_output=True, check=False)

    def lose(self, *, to_server: bool, to_worker: bool) -> None:
        if to_server:
            self._inside(*self._falsified(self.outer, self._inner_card))
        if to_worker:
            _ip(*self._falsified(self.inner, self._outer_card))

    def heal(self) -> None:
        subprocess.run(
            ["ip", "-n", self.name, "neigh", "del", self.outer, "dev", self._inner_card],
            capture_output=True,
            check=False,
        )
        subprocess.run(
            ["ip", "neigh", "del", self.inner, "dev", self._outer_card], capture_output=True, check=False
        )

    @staticmethod
    def _falsified(address: str, card: str) -> tuple[str, ...]:
        return ("neigh", "replace", address, "lladdr", NOBODYS, "dev", card, "nud", "permanent")

    def _inside(self, *words: str) -> None:
        _ip("-n", self.name, *words)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], capture_output=True, check=True)
