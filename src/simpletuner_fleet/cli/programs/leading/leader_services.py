"""Runs everything a server does while it leads: composes it over an open store, starts it, and ends every task."""

import argparse
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from simpletuner_fleet import __version__
from simpletuner_fleet.blobs.leaders import LeadersBlobs
from simpletuner_fleet.blobs.opening import local_folder, open_direct
from simpletuner_fleet.cli.frame.private_files import read_private, stored_secret, write_private
from simpletuner_fleet.cli.programs.addresses import line_for_others
from simpletuner_fleet.cli.programs.admin_token import stored_admin_token
from simpletuner_fleet.cli.programs.leading.audit_key import stored_audit_key
from simpletuner_fleet.cli.programs.leading.notices import outbound_of, sender_of
from simpletuner_fleet.cli.programs.local_worker import LocalWorker, environment_of
from simpletuner_fleet.core.events import ORCHESTRATOR
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.engine.clock import SteadyClock
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.ids import RandomIds
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.engine.streams import StreamHub
from simpletuner_fleet.http.access.credentials import remembered_credentials
from simpletuner_fleet.http.api.deps import Deps
from simpletuner_fleet.http.application import build_api
from simpletuner_fleet.http.edge.edge import Edge, EdgeSettings
from simpletuner_fleet.http.server import tls
from simpletuner_fleet.orchestrator.after_restore import hold_after_restore, place_after_hold
from simpletuner_fleet.orchestrator.machines.provisioner import Provisioner
from simpletuner_fleet.orchestrator.notices.deliverer import Deliverer
from simpletuner_fleet.orchestrator.people import accounts, api_tokens
from simpletuner_fleet.orchestrator.publishing import Places, Publisher
from simpletuner_fleet.orchestrator.runtime import Runtime, note_start
from simpletuner_fleet.orchestrator.sign_in.added import AddedProviders
from simpletuner_fleet.orchestrator.sign_in.ways import SignIn, SignInSettings
from simpletuner_fleet.orchestrator.workers import administer
from simpletuner_fleet.ports import Blobs, Store
from simpletuner_fleet.storage.audit.heads import AuditHeads
from simpletuner_fleet.storage.ownership import claim_storage, insist_on_shared_storage
from simpletuner_fleet.storage.probe import prove_storage
from simpletuner_fleet.storage.shared_journal import LOOKED_BACK_S, SharedJournal, taken_since
from simpletuner_fleet.storage.space import Reserve, SpaceKeeper, SpaceWatch
from simpletuner_fleet.storage.sweeping.sweeper import StorageSweeper
from simpletuner_fleet.storage.uploads.direct import DirectStorage
from simpletuner_fleet.store.backup.journal import JOURNAL_FILE, RevocationJournal
from simpletuner_fleet.store.sealing import SealedVault
from simpletuner_fleet.web import routes as web_routes
from simpletuner_fleet.web.frame.problems import problem_page

BACKGROUND_TASKS_TIMEOUT_S = 0.5
LOCAL_WORKER_LEAVES_AFTER_S = 300.0
LOOPBACK_NETWORKS = ("127.0.0.0/8", "::1/128")
"""It goes on with its job while a killed server is started again, and not for longer."""


class ServerPlan(Struct, frozen=True, kw_only=True):
    """Holds the settings that a server was given, and what it found out when it started."""

    args: argparse.Namespace
    policy: Policy
    data_dir: Path
    key_file: Path
    blobs: Blobs
    local: bool
    beyond_loopback: bool
    shares_port: bool
    """TLS for other machines, plain HTTP for this one, on the same port."""
    uses_sqlite: bool
    tls_files: tls.TlsFiles | None
    sign_in: SignInSettings = SignInSettings()


class Term(Struct, frozen=True, kw_only=True):
    """Describes the term in which an orchestrator leads, where it is not the only one."""

    number: int
    may_promise: Callable[[], bool]


class LeaderServices:
    def __init__(self, plan: ServerPlan, store: Store, term: Term | None = None) -> None:
        """Composes the server; `term` is None where the store admits no other orchestrator."""
        self._plan = plan
        self._args = plan.args
        self._term = term
        self._local_worker: LocalWorker | None = None
        self._outbound = outbound_of(plan.args)
        self.deps = self._compose(store)
        self.edge = self._edge()
        self.first_key: accounts.IssuedKey | None = None
        self.admin_token_from = ""
        self._running = AsyncExitStack()

    async def begin(self) -> None:
        """Starts everything. If that fails, whatever had started is ended again."""
        try:
            await self._begin()
        except BaseException:
            await self.end()
            raise

    async def _begin(self) -> None:
        deps, fleet, args = self.deps, self.deps.fleet, self._args
        head = await fleet.read(lambda view: view.audit_head())
        own_journal = RevocationJournal(
            self._plan.data_dir / JOURNAL_FILE, fleet.clock.now(), head.seq if head else 0
        )
        since = own_journal.newest_at() - LOOKED_BACK_S
        own_journal.catch_up(await fleet.read(lambda view: taken_since(view, since)))
        fleet.on_revoked = own_journal.note
        held_until = await hold_after_restore(fleet)
        if held_until is not None:
            deps.background_tasks.start(place_after_hold(fleet, held_until))
        await prove_storage(deps.blobs)
        if self._term is not None and not args.adopt_storage:
            await insist_on_shared_storage(deps.storage)
        await claim_storage(deps.storage, adopt=args.adopt_storage)
        if deps.direct:
            self._running.push_async_callback(deps.direct.blobs.close)
            await deps.direct.prove()
        if self._term is not None:
            journal = SharedJournal(fleet, deps.blobs)
            await journal.start()
            self._running.push_async_callback(journal.stop)
            fleet.share_revoked = journal.note
        token, self.admin_token_from = stored_admin_token(self._plan.data_dir, args.admin_token)
        await api_tokens.set_admin_token(fleet, token)
        await note_start(fleet, __version__)
        if not await fleet.read(accounts.any_user):
            self.first_key = await accounts.first_key(fleet, ORCHESTRATOR)
        if self._plan.local:
            await self._know_local_worker(fleet)
        running = self._running
        running.push_async_callback(deps.sign_in.close)
        running.push_async_callback(deps.background_tasks.finish, BACKGROUND_TASKS_TIMEOUT_S)
        keeper = SpaceKeeper(deps.space, Reserve(self._plan.data_dir) if self._plan.uses_sqlite else None)
        keeper.start()
        running.push_async_callback(keeper.stop)
        if deps.audit_heads:
            await deps.audit_heads.start()
            running.push_async_callback(deps.audit_heads.stop)
        runtime = Runtime(fleet)
        await runtime.start()
        running.push_async_callback(runtime.stop)
        sweeper = StorageSweeper(deps.storage)
        sweeper.start()
        running.push_async_callback(sweeper.stop)
        deps.publisher = Publisher(deps.storage, Places(args.publish_url, args.hub_url))
        deps.publisher.start()
        running.push_async_callback(deps.publisher.stop)
        deps.deliverer = Deliverer(fleet, sender_of(args, self._outbound))
        deps.deliverer.start()
        running.push_async_callback(deps.deliverer.stop)

    def start_local_worker(self, url: str, fingerprint: str | None) -> None:
        """Starts the local worker and the provisioner, which need to know this server's address."""
        self._start_provisioner(url, fingerprint)
        if self._plan.local:
            self._local_worker = LocalWorker(self._plan.data_dir, self._local_arguments(url, fingerprint))
            self._local_worker.start()

    def _start_provisioner(self, url: str, fingerprint: str | None) -> None:
        reached_at = self._args.public_url or url
        joining = {"SIMPLETUNER_ORCHESTRATOR_URL": reached_at}
        if fingerprint and reached_at.startswith("https:"):
            joining["SIMPLETUNER_SSL_FINGERPRINT"] = fingerprint
        provisioner = Provisioner(
            self.deps.fleet,
            self._plan.data_dir / "machines",
            environment_of(os.environ, self._plan.data_dir),
            joining,
        )
        self.deps.provisioner = provisioner
        provisioner.start()
        self._running.push_async_callback(provisioner.stop)

    async def end_streams(self, *, keep_local_worker: bool = False) -> None:
        """Ends open streams; the local worker is stopped first, since it still has to return its job."""
        if self._local_worker and not keep_local_worker:
            await self._local_worker.stop()
            self._local_worker = None
        self.deps.stopping = True
        await self.edge.end_streams()

    async def end(self) -> None:
        await self._running.aclose()

    def _compose(self, store: Store) -> Deps:
        plan, args = self._plan, self._args
        hub = StreamHub()
        ids = RandomIds(stored_secret(plan.data_dir / "secret"))
        vault = SealedVault.at(plan.key_file)
        fleet = Fleet(store, FleetIndex(), SteadyClock(), ids, hub, plan.policy, vault)
        heads = AuditHeads(fleet, stored_audit_key(plan.data_dir / "audit.key"), self._heads_file())
        fleet.signed_heads = heads
        blobs = plan.blobs
        if self._term is not None:
            fleet.leads = self._term.may_promise
            blobs = LeadersBlobs(plan.blobs, self._term.may_promise)
        files = plan.tls_files
        direct = open_direct(
            args.storage_url, args.storage_direct, args.storage_direct_url, os.environ, fleet.leads
        )
        sign_in = SignIn(plan.sign_in, fleet.clock.now)
        sign_in.added = AddedProviders(lambda: fleet.organisation.providers, vault, self._outbound)
        return Deps(
            fleet=fleet,
            audit_heads=heads,
            hub=hub,
            blobs=blobs,
            credentials=remembered_credentials(fleet, hub, sign_in.vouches),
            public_url=args.public_url,
            fingerprint=files.fingerprint if files and files.ca else None,
            local_enabled=plan.local,
            local_problem=lambda: self._local_worker.problem if self._local_worker else "",
            beyond_loopback=plan.beyond_loopback,
            bound_to=args.host,
            line_for_others=line_for_others(args),
            plain_for_own_machine_only=plan.shares_port,
            metrics_public=args.metrics_public,
            space=self._space(),
            direct=DirectStorage(blobs=direct, for_browsers=args.storage_direct == "all") if direct else None,
            sign_in=sign_in,
        )

    def _heads_file(self) -> Path:
        named = self._args.audit_heads_file
        return Path(named).expanduser() if named else self._plan.data_dir / "audit_heads.jsonl"

    def _space(self) -> SpaceWatch:
        least = self._args.min_free_gb
        folder = local_folder(self._args.storage_url, self._plan.data_dir / "storage")
        return SpaceWatch(folder, None if least is None else int(least * 1e9))

    def _edge(self) -> Edge:
        looks, clock = self.deps.certificate_looks, self.deps.fleet.clock
        return build_api(
            self.deps,
            self._edge_settings(),
            tls.authority_routes(self._plan.tls_files, lambda ip: looks.note(ip, clock.now())),
            web_routes.ROUTES,
            problem_page,
        )

    def _edge_settings(self) -> EdgeSettings:
        args, term, proxy = self._args, self._term, self._plan.sign_in.proxy
        allowed = list(args.allowed_host)
        if args.public_url:
            allowed.append(urlsplit(args.public_url).hostname or "")
        return EdgeSettings(
            trust_loopback=args.trust_loopback,
            beyond_loopback=self._plan.beyond_loopback,
            allowed_hosts=tuple(name for name in allowed if name),
            trusted_proxies=",".join(args.trusted_proxies),
            asserted_headers=proxy.headers if proxy else frozenset(),
            user_header=proxy.user_header if proxy else "",
            worker_networks=",".join(self._worker_networks()),
            tls=self._plan.tls_files is not None and not self._plan.shares_port,
            term=term.number if term else None,
            may_promise=term.may_promise if term else None,
        )

    def _worker_networks(self) -> list[str]:
        """Returns the allowed networks, with loopback for the local worker, which connects from this machine."""
        named: list[str] = self._args.worker_networks
        return [*named, *LOOPBACK_NETWORKS] if named and self._plan.local else named

    async def _know_local_worker(self, fleet: Fleet) -> None:
        path = self._plan.data_dir / "local_worker_token"
        stored = read_private(path)
        _, token = await administer.local_worker(fleet, stored, ORCHESTRATOR)
        if token != stored:
            write_private(path, token)

    def _local_arguments(self, url: str, fingerprint: str | None) -> list[str]:
        words = ["--orchestrator-url", url, "--persistent", "--name", administer.LOCAL_NAME]
        words += ["--leave-after", f"{LOCAL_WORKER_LEAVES_AFTER_S:g}"]
        words += ["--worker-token-file", str(self._plan.data_dir / "local_worker_token")]
        if self._args.trainer_python:
            words += ["--trainer-python", self._args.trainer_python]
        return (
            [*words, "--ssl-fingerprint", fingerprint] if fingerprint and url.startswith("https:") else words
        )
