"""The server, started again whenever it is killed: and it kills itself, by SIGKILL, once at each step of provisioning.

Each life is a process of its own, forked from one that has imported everything already: so that twenty of them are cheap.
Nothing of the server is replaced. What is wrapped does as before, with a death in front of it, in it or behind it.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import httpcore2  # noqa: F401

import simpletuner_fleet.cli.programs.server  # noqa: F401
from simpletuner_fleet.cli.main import main as simpletuner
from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.core.provisioning import growth, upkeep
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.machines import joining, provisioner
from simpletuner_fleet.providers import registry
from tests.providers.kills.steps import BRINGING

SETTLE_S, SWEEP_S, PAUSE_S = 1.5, 0.2, 0.1
"""Shorter than real ones are: what is waited for is on this machine."""
_call: ContextVar[str] = ContextVar("call", default="")


class Traps:
    """Steps at which the server has yet to die. Others strike at some of them from outside, in the same file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.left = set((folder / "steps").read_text().split("\n")) - set(self.struck())

    def struck(self) -> list[str]:
        file = self._folder / "struck"
        return file.read_text().splitlines() if file.exists() else []

    def strike(self, step: str) -> None:
        if step in self.left:
            with (self._folder / "struck").open("a") as file:
                file.write(f"{step}\n")
            os.kill(os.getpid(), signal.SIGKILL)

    def brings(self) -> bool:
        """Whether a step is left that comes before a machine joins."""
        left = self.left - set(self.struck())
        return any(step.split()[0] in BRINGING for step in left)


class TrappedProvider:
    """A provider whose calls may be the last thing that this process does."""

    settle_s, sweep_s = SETTLE_S, SWEEP_S

    def __init__(self, provider: Any, traps: Traps) -> None:
        self._provider, self._traps = provider, traps

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        call = getattr(self._provider, name)

        async def trapped(*arguments: Any) -> Any:
            self._traps.strike(f"{name} before")
            token = _call.set(name)
            try:
                answer = await call(*arguments)
            finally:
                _call.reset(token)
            self._traps.strike(f"{name} after")
            return answer

        return trapped


def act_of(traps: Traps) -> Callable[..., Awaitable[Any]]:
    act = Fleet.act

    async def act_trapped(fleet: Fleet, step: Callable[[Transaction], Any]) -> Any:
        moved: list[str] = []

        def watched(transaction: Transaction) -> Any:
            answer = step(transaction)
            names = [str(event.type) for event in transaction._events]
            moved[:] = [name.partition(".")[2] for name in names if name.startswith("machine.")]
            for name in moved:
                traps.strike(f"{name} before")
            return answer

        answer = await act(fleet, watched)
        for name in moved:
            traps.strike(f"{name} after")
        return answer

    return act_trapped


def set_traps(traps: Traps) -> None:
    make, join = registry.make_provider, joining.join
    communicate = asyncio.subprocess.Process.communicate

    def make_trapped(surroundings: Any) -> Any:
        return TrappedProvider(make(surroundings), traps)

    async def join_later(*arguments: Any) -> Any:
        if traps.brings():
            raise StoreUnavailable("First everything before this has to be struck.")
        return await join(*arguments)

    async def communicate_trapped(process: asyncio.subprocess.Process, sent: bytes | None = None) -> Any:
        """What was asked of a command is wholly there, and nobody will hear its answer."""
        if f"{_call.get()} sent" in traps.left and process.stdin:
            process.stdin.write(sent or b"")
            await process.stdin.drain()
            process.stdin.close()
            await process.stdin.wait_closed()
            traps.strike(f"{_call.get()} sent")
        return await communicate(process, sent)

    wrapped: list[tuple[Any, str, Any]] = [
        (growth, "FIRST_PAUSE_S", PAUSE_S),
        (upkeep, "HEARD_AGAIN_WITHIN_S", 0.0),
        (provisioner, "SHORTEST_ROUND_S", SWEEP_S),
        (provisioner, "make_provider", make_trapped),
        (Fleet, "act", act_of(traps)),
        (joining, "join", join_later),
        (asyncio.subprocess.Process, "communicate", communicate_trapped),
    ]
    for place, name, value in wrapped:
        setattr(place, name, value)


def main() -> int:
    folder = Path(os.environ["TRAPS"])
    while True:
        life = os.fork()
        if life == 0:
            set_traps(Traps(folder))
            return simpletuner(sys.argv[1:])
        (folder / "pid").write_text(str(life))
        _, status = os.waitpid(life, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main())
