"""A worker with a valid token and bad manners: other workers' turns, unknown jobs, absurd numbers."""

from collections.abc import Callable
from typing import Any

from simpletuner_fleet.protocol.messages import (
    Accept,
    Goodbye,
    Heartbeat,
    HeldAttempt,
    HeldState,
    Register,
    ReportStatus,
    StatusReport,
)
from simpletuner_fleet.sim.network import Link
from simpletuner_fleet.sim.orchestrator import Orchestrator
from simpletuner_fleet.sim.world import World


class Byzantine:
    def __init__(self, world: World, orchestrator: Orchestrator, link: Link, token: str) -> None:
        self.world = world
        self.orchestrator = orchestrator
        self.link = link
        self.token = token

    def misbehave(self) -> None:
        if not self.world.faulty:
            return
        chance, orchestrator = self.world.chance, self.orchestrator
        job_id, epoch = self._somebody_elses_turn()
        self.world.fault("bad message")
        held = [
            HeldAttempt(job_id=job_id, epoch=epoch, state=chance.choice(list(HeldState)), step=-1),
            HeldAttempt(job_id="j_unknown", epoch=chance.choice((0, -5, epoch + 1_000, 2**62))),
        ]
        messages: list[Callable[[], Any]] = [
            lambda: orchestrator.register(
                self.token, Register(name="stranger", trainers=[], attempts=held, incarnation="i_byz")
            ),
            lambda: orchestrator.heartbeat(
                self.token, Heartbeat(attempts=held, status="pwned", incarnation=chance.choice(("", "i_byz")))
            ),
            lambda: orchestrator.heartbeat(self.token, Heartbeat(current_job_id=job_id, status="busy")),
            lambda: orchestrator.accept(
                self.token, job_id, Accept(epoch=epoch, seq=chance.choice((0, 10**9)))
            ),
            lambda: orchestrator.report(
                self.token,
                job_id,
                StatusReport(
                    status=chance.choice(list(ReportStatus)),
                    epoch=chance.choice((epoch, None, epoch - 1)),
                    progress={"step": "many", "total": -1},
                ),
            ),
            lambda: orchestrator.report_of_shim(
                f"ut_{epoch}", job_id, StatusReport(status=ReportStatus.LOST, epoch=epoch)
            ),
            lambda: orchestrator.goodbye(self.token, Goodbye(released=held)),
        ]
        work = chance.choice(messages)
        self.link.call(lambda reply: orchestrator.receive(work, reply), lambda outcome: None)

    def _somebody_elses_turn(self) -> tuple[str, int]:
        live = self.orchestrator.store.view.live_attempts()
        if not live:
            return "j_unknown", 1
        victim = self.world.chance.choice(live)
        return victim.job_id, victim.epoch
