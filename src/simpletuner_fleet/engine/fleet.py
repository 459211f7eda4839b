"""Acts for the orchestrator in the one way there is: load, decide, commit, then send."""

import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from simpletuner_fleet.core.audit import Witness
from simpletuner_fleet.core.errors import FleetError, NotLeader, StoreUnavailable
from simpletuner_fleet.core.jobs import lifecycle, retry
from simpletuner_fleet.core.jobs.fencing import Turn, turn_of
from simpletuner_fleet.core.jobs.job import AttemptState, Hold
from simpletuner_fleet.core.people.revocations import TAKES_AWAY, Revocation, noted_in
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.workers.worker import Connection
from simpletuner_fleet.engine.dispatch import place_waiting_jobs
from simpletuner_fleet.engine.gate import Gate
from simpletuner_fleet.engine.memory.gpu_history import GpuHistory
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.engine.memory.organisation import NOBODY_ORGANISED, read_organisation
from simpletuner_fleet.engine.memory.presence import Presence
from simpletuner_fleet.engine.memory.standing import FleetStanding
from simpletuner_fleet.engine.memory.witnesses import note_witness
from simpletuner_fleet.engine.quiet_heartbeats import QuietHeartbeats
from simpletuner_fleet.engine.transaction import Effects, Everybody, Transaction
from simpletuner_fleet.ports import Clock, Ids, SignedHeads, Store, Streams, Tx, Vault, View
from simpletuner_fleet.protocol.messages import AuditHead

T = TypeVar("T")
END_OF_TIME = 1e15
MANY = 1_000_000
SCANS_AT_ONCE = 64
SCANS_PER_CALLER = 1


class Fleet:
    def __init__(
        self,
        store: Store,
        index: FleetIndex,
        clock: Clock,
        ids: Ids,
        streams: Streams,
        policy: Policy,
        vault: Vault | None = None,
    ) -> None:
        self.store = store
        self.vault = vault
        """None: this fleet keeps no secrets."""
        self.clock = clock
        self.began_at = clock.now()
        self.ids = ids
        self.streams = streams
        self.policy = policy
        self.presence = Presence(policy, clock.now)
        self.gpu_history = GpuHistory()
        self.audit_head: AuditHead | None = None
        self.witnesses: dict[str, Witness] = {}
        self.signed_heads: SignedHeads | None = None
        self.scan_gate = Gate(at_once=SCANS_AT_ONCE, per_caller=SCANS_PER_CALLER)
        """Before the line of long looks, which no single caller fills."""
        self.organisation = NOBODY_ORGANISED
        """Teams as they were last committed: for whoever looks, beside the writer."""
        self.on_first_offer: Callable[[float], None] | None = None
        """Told how long a job waited from its submission to its first offer."""
        self.on_attempt_end: Callable[[str, str], None] | None = None
        """Told how an attempt ended, and the class of its failure."""
        self.on_due: Callable[[float], None] | None = None
        """Told of the moment at which a job that is held may go on."""
        self.on_unfinished: Callable[[], None] | None = None
        """Told that a step has left something to the next: jobs to tell of an end that they wait for, or to place."""
        self.on_commit: Callable[[float], None] | None = None
        """Told how many seconds a transaction took, with its wait for the disk."""
        self.on_revoked: Callable[[list[Revocation]], None] | None = None
        """Told, after the commit and before the answer, what was taken away from whom."""
        self.share_revoked: Callable[[list[Revocation]], Awaitable[None]] | None = None
        """The same, told to all orchestrators: once whoever listened with what was revoked has been cut off."""
        self.on_doubt: Callable[[], None] | None = None
        """Told where something may have been taken away of which nobody was told: whoever remembers what somebody may
        do looks it up anew."""
        self.leads: Callable[[], bool] = lambda: True
        """Whether this orchestrator leads for sure at this very moment; one that is alone always does."""
        self.quotas_looked_at = 0.0
        """When somebody last looked which quotas are nearly used."""
        self._index = index
        self._standing = FleetStanding(version=-1, book=None)
        store.observe(index)
        self._read_now: Callable[[Callable[[View], Any]], Any] | None = getattr(store, "read_now", None)
        """Where the store can show a few rows at once, and others need a thread or a network for it."""
        self.quiet_heartbeats = QuietHeartbeats(index, store)

    def has_finishing_jobs(self) -> bool:
        return self._index.roster.any_finishing

    def has_waiting_jobs(self) -> bool:
        return bool(self._index.roster.lines.classes_with_jobs())

    async def act(self, step: Callable[[Transaction], T]) -> T:
        """Runs a step and the placements that follow from it in one transaction, then notifies those concerned.

        More than `placed_at_once` are left to the steps after it.
        """
        began = time.monotonic()
        try:
            value, effects = await self.store.write(partial(self._run, step))
        except StoreUnavailable:
            raise
        except FleetError:
            await self._settle()
            raise
        if self.on_commit:
            self.on_commit(time.monotonic() - began)
        self._carry_out(effects)
        if self.share_revoked and effects.revoked:
            await self.share_revoked(effects.revoked)
        return value

    async def _settle(self) -> None:
        """Follows what an unanswered commit may have stored, which a refused step does not: its refusal speaks of it."""
        if not self._index.settled:
            _, effects = await self.store.write(partial(self._run, lambda transaction: None))
            self._carry_out(effects)

    def insist_on_leading(self) -> None:
        """Raises NotLeader unless this orchestrator certainly leads.

        It is called immediately before anything is done that no transaction can undo.
        """
        if not self.leads():
            raise NotLeader("This orchestrator is not sure it still leads; nothing was changed.")

    async def announce(self, key: str, what: str) -> None:
        """Records what is about to be done outside the database, or raises, as in a term that is over."""
        line = f"{self.clock.now():.3f} {what}"
        await self.act(lambda transaction: transaction.tx.put_setting(key, line))
        self.insist_on_leading()

    def drains_due(self) -> list[str]:
        """Returns the workers whose drain has waited long enough and that still hold something to stop."""
        now, roster = self.clock.now(), self._index.roster
        return [
            worker.id
            for worker in list(roster.workers.values())
            if worker.drain_plan is not None and worker.drain_is_due(now) and roster.occupancy(worker.id).live
        ]

    def ceilings_near(self) -> list[Turn]:
        """Returns the trainings that have to end now, so that their jobs do not cost more than they may."""
        return self._index.ceilings.due(self.policy, self.clock.now())

    def pauses_over(self) -> list[str]:
        """Returns the workers that could not start what they were given, and may be tried again."""
        now = self.clock.now()
        return [
            worker.id
            for worker in list(self._index.roster.workers.values())
            if worker.start_trouble is not None and worker.pause_is_over(now)
        ]

    def note_witness(self, brought: Witness) -> None:
        """Remembers a head of the audit log that a worker has brought."""
        workers = self._index.roster.workers if self._index.settled else None
        note_witness(self.witnesses, brought, workers)

    async def save_heartbeats(self, heard: Sequence[tuple[str, float]]) -> None:
        """Saves when workers were heard, which decides nothing; but jobs that are left to place are placed."""
        if self._index.unplaced:
            await self.act(lambda transaction: transaction.tx.touch_heartbeats(heard))
        else:
            await self.store.write(lambda tx: tx.touch_heartbeats(heard))

    def hold_placements(self, until: float) -> None:
        """Holds all placements until then, whatever is free; it is called before anything else happens."""
        self._index.placing_from = until
        self._index.unplaced = True

    def clock_frees_something(self) -> bool:
        """Tells whether a daily quota is due to begin anew, or part of an hourly one is free again."""
        return self._index.clock_frees_something(self.clock.now())

    def needs_a_step(self) -> bool:
        """Tells whether something follows from the clock, or from rows over which no step has run.

        After a commit that failed nobody has heard what its answer would have said.
        """
        return not self._index.settled or bool(self._index.left_to_place) or self.clock_frees_something()

    def neighbours(self, worker_id: str) -> list[str]:
        """Returns the other workers that report one of this worker's GPUs, mostly none, without a scan of all."""
        return self._index.roster.neighbours(worker_id)

    def standing(self) -> FleetStanding:
        """Returns the standing to hand to a read; it is taken in the event loop before the read."""
        index = self._index
        version = index.version
        if self._standing.roster is None or self._standing.version != version:
            try:
                roster = index.roster.seen_from_outside() if index.settled else None
            except RuntimeError:  # a step runs in the writer's thread just now
                roster = None
            self._standing = FleetStanding(
                version=version if roster else -1,
                book=index.roster.book,
                roster=roster,
                verdicts=self._standing.verdicts,
            )
        return self._standing

    def read(self, look: Callable[[View], T]) -> Coroutine[Any, Any, T]:
        return self.store.read(look)

    @property
    def sees_everything(self) -> bool:
        return True

    def scan(self, look: Callable[[View], T]) -> Coroutine[Any, Any, T]:
        """Reads as `read` does, beside it: for whatever goes through many rows."""
        return self.store.scan(look)

    async def read_now(self, look: Callable[[View], T]) -> T:
        """Reads a few rows that are asked for all the time."""
        if self._read_now is None:
            return await self.store.read(look)
        value: T = self._read_now(look)
        return value

    async def start(self) -> None:
        """Re-arms every deadline: everybody who was connected gets the full time to be heard again."""
        now = self.clock.now()
        self.presence.begin_round(now)
        workers, live, head = await self.read(
            lambda view: (view.workers(), view.live_attempts(), view.audit_head())
        )
        self._expect(Everybody(workers, live))
        self.audit_head = AuditHead(seq=head.seq, hash=head.hash) if head else None
        self.organisation = await self.read(read_organisation)
        await self._cap_retries()

    def _expect(self, everybody: Everybody) -> None:
        self.presence.expect(
            [worker.id for worker in everybody.workers if worker.connection is not Connection.OFFLINE],
            [(turn_of(attempt), attempt.worker_id) for attempt in everybody.live],
            [turn_of(attempt) for attempt in everybody.live if attempt.state is AttemptState.OFFERED],
        )

    async def _cap_retries(self) -> None:
        held = await self.read(lambda view: view.due_backoffs(END_OF_TIME, MANY))
        now = self.clock.now()
        late = [
            job
            for job in held
            if job.hold is Hold.BACKOFF
            and job.not_before is not None
            and job.not_before > now + retry.backoff_s(job.charged, self.policy)
        ]

        def step(transaction: Transaction) -> None:
            for job in late:
                for last in transaction.tx.attempts_of_job(job.id)[-1:]:
                    current = transaction.known_job(job.id)
                    if current is not None:
                        policy, now = transaction.policy, transaction.now
                        transaction.apply(lifecycle.backoff_capped(current, last, policy, now))

        if late:
            await self.act(step)

    def _run(self, step: Callable[[Transaction], T], tx: Tx) -> tuple[T, Effects]:
        index = self._index
        if index.reserved_before is not None:
            index.put_reservations_back()
        if index.roster.freed:
            index.roster.freed.clear()
        transaction = Transaction(tx, index, self.ids, self.policy, self.clock.now(), self.vault)
        index.begin_step(tx, transaction.now)
        unheard = [] if index.settled else self._unheard_revocations(tx)
        if index.unplaced:
            transaction.consider_every_class()
        if index.left_to_place:
            transaction.go_on_with(index.left_to_place)
        try:
            value = step(transaction)
            if transaction.causes:
                place_waiting_jobs(transaction)
            transaction.finish()
        except BaseException:
            transaction.undo()
            raise
        if not index.settled:
            transaction.effects.everybody = Everybody(list(index.roster.workers.values()), tx.live_attempts())
            transaction.effects.organisation = transaction.organisation
            transaction.effects.revoked = unheard + transaction.effects.revoked
        index.unplaced = index.placing_from is not None and index.holds_placements(transaction.now)
        index.settled = True
        index.left_to_place = tuple(transaction.causes)
        return value, transaction.effects

    def _unheard_revocations(self, tx: Tx) -> list[Revocation]:
        """Returns what was taken away by commits whose answers were lost: a journal that lacks it gives it back."""
        if self.audit_head is None:
            return []
        entries = tx.audit_range(self.audit_head.seq, MANY)
        return [noted_in(entry) for entry in entries if entry.event_type in TAKES_AWAY]

    def _carry_out(self, effects: Effects) -> None:
        if effects.organisation is not None:
            self.organisation = effects.organisation
        if effects.everybody is not None and self.on_doubt:
            self.on_doubt()
        self._say_what_is_left(effects)
        if effects.waited_s or effects.outcomes:
            self._count(effects)
        self._follow_presence(effects)
        if effects.audit_head and (not self.audit_head or effects.audit_head[0] > self.audit_head.seq):
            self.audit_head = AuditHead(seq=effects.audit_head[0], hash=effects.audit_head[1])
        for worker_id, why in effects.cut:
            self.streams.cut(worker_id, why)
        if effects.wake or effects.offers:
            self._notify_workers(effects)
        for event, data in effects.published:
            self.streams.publish(event, data)
        if self.on_revoked and effects.revoked:
            self._tell_revoked(effects.revoked)

    def _say_what_is_left(self, effects: Effects) -> None:
        """Tells what is to be done in a transaction after this one."""
        if self.on_due and effects.due:
            self.on_due(min(effects.due))
        if self.on_unfinished and effects.unfinished:
            self.on_unfinished()

    def _tell_revoked(self, revoked: list[Revocation]) -> None:
        """Tells what was taken away, last of all: where a full disk takes no note of it, it is taken away all the same."""
        try:
            if self.on_revoked:
                self.on_revoked(revoked)
        except BaseException:
            if self.on_doubt:
                self.on_doubt()  # whoever took it away learns of a failure alone, and tells nobody
            raise

    def _notify_workers(self, effects: Effects) -> None:
        for worker_id in effects.wake - effects.offers.keys():
            self.streams.wake(worker_id)
        for worker_id, offers in effects.offers.items():
            self.streams.offer(worker_id, offers)

    def _count(self, effects: Effects) -> None:
        if self.on_first_offer:
            for waited_s in effects.waited_s:
                self.on_first_offer(waited_s)
        if self.on_attempt_end:
            for outcome, failure in effects.outcomes:
                self.on_attempt_end(outcome, failure)

    def _follow_presence(self, effects: Effects) -> None:
        if effects.everybody is not None:
            self._expect(effects.everybody)
        for turn, worker_id in effects.began:
            self.presence.offered(turn, worker_id)
        for turn in effects.ended:
            self.presence.ended(turn)
        if effects.reported is not None:
            self.presence.reported(*effects.reported, self.clock.now())
        for worker_id in effects.left:
            self.presence.left(worker_id)
            self.quiet_heartbeats.forget(worker_id)
