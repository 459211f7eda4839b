"""Makes backups while the fleet runs, and restores them: what was stored since is lost, what runs is not."""

from collections.abc import Callable

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.people.revocations import BackupMoment, withdrawn_since
from simpletuner_fleet.core.restoring import RESTORED, RestoreNote, least_epoch
from simpletuner_fleet.ports import Tx
from simpletuner_fleet.sim.people import Memory, People
from simpletuner_fleet.sim.server.orchestrator import Orchestrator
from simpletuner_fleet.sim.server.store import Backup
from simpletuner_fleet.sim.world import World

LOCKED_FOR_S = 3.0
"""While a database is put back no server runs on it."""


class KeptBackup(Struct, frozen=True, kw_only=True):
    """Holds a backup, and what people knew when it was made."""

    rows: Backup
    moment: BackupMoment
    memory: Memory


class Restores:
    """Makes backups of the rows and restores them.

    It does what `backup create` and `backup restore` do to the rows, with the real rules of what must not come back.
    """

    def __init__(self, world: World, orchestrator: Orchestrator, people: People) -> None:
        self.world = world
        self.orchestrator = orchestrator
        self.people = people
        self.on_restored: Callable[[list[Turn]], None] = lambda accepted: None
        """Is told which turns had been accepted."""
        self._kept: list[KeptBackup] = []

    def create(self) -> None:
        self.world.counts["backup made"] += 1
        self._kept.append(
            KeptBackup(
                rows=self.orchestrator.store.backup(),
                moment=self._moment(),
                memory=self.people.memory(),
            )
        )

    def _moment(self) -> BackupMoment:
        newest = self.orchestrator.store.view.audit_head()
        return BackupMoment(self.orchestrator.wall_now(), newest.seq if newest else 0)

    def restore(self) -> None:
        """Stops every orchestrator, restores a backup, and starts them once the database is in its place."""
        orchestrator = self.orchestrator
        if not self._kept or orchestrator.is_being_restored:
            return
        kept = self._chosen()
        self.world.fault("backup restored", f"of {self.orchestrator.wall_now() - kept.moment.at:.0f} s ago")
        orchestrator.is_being_restored = True
        for process in orchestrator.processes:
            process.crash()
        live = orchestrator.store.view.live_attempts()
        accepted = [Turn(one.job_id, one.epoch) for one in live if one.accepted_at is not None]
        orchestrator.store.restore(kept.rows, lambda tx: self._fix_up(tx, kept.moment))
        orchestrator.restores += 1
        self.people.remember(kept.memory)
        self.on_restored(accepted)
        self.world.after(LOCKED_FOR_S, self.finish)

    def _chosen(self) -> KeptBackup:
        """Chooses a backup, mostly one in which jobs wait: they may run by now."""
        waiting = [one for one in self._kept if one.rows["queue"]]
        aimed = bool(waiting) and self.world.chance.random() < 0.7
        return self.world.chance.choice(waiting if aimed else self._kept)

    def finish(self) -> None:
        if self.orchestrator.is_being_restored:
            self.orchestrator.is_being_restored = False
            self.orchestrator.start()

    def _fix_up(self, tx: Tx, backup: BackupMoment) -> None:
        now = self.orchestrator.wall_now()
        note = RestoreNote(backup_at=backup.at, backup_epoch=0, restored_at=now, credentials="journal")
        tx.raise_epoch_to(least_epoch(now))
        tx.put_setting(RESTORED, msgspec.json.encode(note).decode())
        for worker_id in withdrawn_since(backup, self.orchestrator.revocations).workers:
            worker = tx.worker(worker_id)
            if worker is not None:
                unusable = f"restored:{self.orchestrator.ids.new('unusable')}"
                tx.save_worker(msgspec.structs.replace(worker, token_hash=unusable))
