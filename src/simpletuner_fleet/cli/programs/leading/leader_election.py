"""Runs one of several servers on a PostgreSQL: it leads for a term, then forwards requests until it leads again."""

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress

from simpletuner_fleet.cli.programs.leading.leader_services import LeaderServices, Term
from simpletuner_fleet.core.errors import FleetError
from simpletuner_fleet.core.leadership import Lease
from simpletuner_fleet.http.peers.proof import PeerProof
from simpletuner_fleet.http.peers.roles import Roles, Standing
from simpletuner_fleet.orchestrator.leadership import Leadership, LeaseBook
from simpletuner_fleet.ports import Store
from simpletuner_fleet.web.frame.problems import problem_page

log = logging.getLogger(__name__)

PAUSE_AFTER_FAILURE_S = 5.0
"""Whoever could not begin to lead lets the others try first."""


class LeaderElection:
    def __init__(
        self,
        book: LeaseBook,
        fleet_key: bytes,
        make_store: Callable[[int], Store],
        make_services: Callable[[Store, Term], LeaderServices],
        *,
        tls: bool,
    ) -> None:
        """Calls `make_store` and `make_services` anew in every term: nothing of an old one is kept."""
        self._make_store, self._make_services = make_store, make_services
        holder = secrets.token_hex(8)
        self._leadership = Leadership(book, holder)
        standing = Standing(
            may_promise=self._leadership.may_promise,
            leader=lambda: self._leadership.leader,
            is_connected=lambda: self._leadership.is_connected,
            holder=holder,
        )
        self.roles = Roles(standing, PeerProof(fleet_key), tls=tls, problem_page=problem_page)
        self._leadership.on_change = self._leader_changed
        self._settled: asyncio.Future[LeaderServices | None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._services: LeaderServices | None = None
        self._store: Store | None = None
        self.on_leading: Callable[[LeaderServices], None] | None = None
        """Called in every term, with what runs in it, once it has begun."""

    def start(
        self,
        url: str,
        fingerprint: str,
        on_settled: Callable[[LeaderServices | None], None],
        on_failure: Callable[[], None],
    ) -> None:
        """Calls `on_settled` once: with what runs here if this orchestrator leads, or with None if another one does.

        Calls `on_failure` if this one cannot even begin for the first time; `stop` then raises the reason.
        """
        self._settled = asyncio.get_running_loop().create_future()
        self._settled.add_done_callback(lambda done: None if done.cancelled() else on_settled(done.result()))
        self._leadership.start(url, fingerprint)
        self._task = asyncio.create_task(self._run_terms())
        self._task.add_done_callback(lambda task: None if task.cancelled() else on_failure())

    async def end_streams(self) -> None:
        self.roles.stop()
        if self._services:
            await self._services.end_streams()

    async def stop(self) -> None:
        """Stops leading, if it does, and returns the lease once nothing is written any more."""
        try:
            if self._task:
                self._task.cancel()
                with suppress(asyncio.CancelledError):
                    await self._task
        finally:
            try:
                await self._end_services()
            finally:
                await self._leadership.stop()

    async def _run_terms(self) -> None:
        while True:
            term = await self._leadership.leads()
            try:
                await self._start_services(term)
            except FleetError as error:
                if self._settled is not None and not self._settled.done():
                    raise
                log.error("this orchestrator cannot lead: %s", error.detail)
                await self._end_services()
                await self._leadership.step_down(PAUSE_AFTER_FAILURE_S)
                continue
            await self._leadership.term_over(term)
            self.roles.follow()
            await self._end_services()

    async def _start_services(self, number: int) -> None:
        self._store = await asyncio.to_thread(self._make_store, number)
        term = Term(number=number, may_promise=lambda: self._leadership.may_promise(number))
        services = self._make_services(self._store, term)
        await services.begin()
        self._services = services
        self.roles.lead(services.edge, number)
        self._settle(services)
        if self.on_leading:
            self.on_leading(services)

    async def _end_services(self) -> None:
        services, self._services = self._services, None
        store, self._store = self._store, None
        try:
            if services:
                await services.end_streams()
                await services.end()
        finally:
            if store:
                await store.close()

    def _leader_changed(self) -> None:
        self.roles.leader_changed()
        lease: Lease | None = self._leadership.leader
        if self._leadership.follows_living and lease is not None:
            log.info("the orchestrator at %s leads, in term %d", lease.url, lease.term)
            self._settle(None)

    def _settle(self, services: LeaderServices | None) -> None:
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(services)
