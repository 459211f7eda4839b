"""`simpletuner server`: everything put together, once."""

import argparse
import asyncio
import json
import logging
import os
import signal
import ssl
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import uvloop

from simpletuner_fleet import __version__
from simpletuner_fleet.blobs.opening import StorageRefused, local_folder, open_blobs
from simpletuner_fleet.cli.frame.errors import CliError, ExitCode, fail
from simpletuner_fleet.cli.frame.private_files import (
    private_folder,
    read_private,
    stored_secret,
    write_private,
)
from simpletuner_fleet.cli.programs.addresses import ANY_ADDRESS, own_url, without_password
from simpletuner_fleet.cli.programs.admin_token import check_admin_token, stored_admin_token
from simpletuner_fleet.cli.programs.browser import open_page
from simpletuner_fleet.cli.programs.local_worker import LocalWorker
from simpletuner_fleet.cli.programs.logging_setup import set_up_logging
from simpletuner_fleet.cli.programs.server_policy import policy_of
from simpletuner_fleet.client.trust import is_loopback
from simpletuner_fleet.core.errors import FleetError, StorageOfAnother, StoreUnavailable
from simpletuner_fleet.core.events import ORCHESTRATOR
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.engine.clock import SteadyClock
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.ids import RandomIds
from simpletuner_fleet.engine.index import FleetIndex
from simpletuner_fleet.engine.streams import StreamHub
from simpletuner_fleet.http.access import networks
from simpletuner_fleet.http.access.credentials import remembered_credentials
from simpletuner_fleet.http.access.networks import BadNetwork, Networks
from simpletuner_fleet.http.api.admin.accounts import start_link
from simpletuner_fleet.http.api.deps import Deps
from simpletuner_fleet.http.application import build_api
from simpletuner_fleet.http.edge.edge import Edge, EdgeSettings
from simpletuner_fleet.http.server import tls
from simpletuner_fleet.http.server.garbage import tune_garbage_collection
from simpletuner_fleet.http.server.serving import Listening, idle_timeout_for, serve
from simpletuner_fleet.languages import N_, _, current
from simpletuner_fleet.orchestrator import accounts, administer, people
from simpletuner_fleet.orchestrator.after_restore import hold_after_restore, place_after_hold
from simpletuner_fleet.orchestrator.publishing import Places, Publisher
from simpletuner_fleet.orchestrator.runtime import Runtime, note_start
from simpletuner_fleet.ports import Blobs, Store
from simpletuner_fleet.storage.audit_heads import AuditHeads, signing_key
from simpletuner_fleet.storage.ownership import claim_storage
from simpletuner_fleet.storage.probe import prove_storage
from simpletuner_fleet.storage.space import Reserve, SpaceKeeper, SpaceWatch
from simpletuner_fleet.storage.sweeper import StorageSweeper
from simpletuner_fleet.store import open_store, sqlite_warning
from simpletuner_fleet.store.backup.journal import JOURNAL_FILE, RevocationJournal
from simpletuner_fleet.store.sealing import SealedVault
from simpletuner_fleet.web import routes as web_routes
from simpletuner_fleet.web.frame.problems import problem_page

log = logging.getLogger(__name__)

SQLITE_FILE = "fleet.db"
BACKGROUND_TASKS_TIMEOUT_S = 0.5
STORE_LOOK_S = 1.0
GONE_WITHIN_S = 10.0
LOCAL_WORKER_LEAVES_AFTER_S = 300.0
"""It goes on with its job while a killed server is started again, and not for longer."""
SWITCH_INTERVAL_S = 0.0001
"""How long the event loop may keep the thread that commits from going on: each of a commit's statements asks for the
interpreter again, and with the usual 5 ms a commit under load would take longer than the disk needs."""


class StoreLost(StoreUnavailable):
    """It takes nothing any more before it is opened anew."""

    next_step = "Look at the disk; then start the server again. A service does so by itself."


def run_server(args: argparse.Namespace) -> int:
    set_up_logging(args.log_format, verbose=args.verbose)
    policy = policy_of(args)
    if args.admin_token:
        check_admin_token(args.admin_token, "SIMPLETUNER_ADMIN_TOKEN")
    data_dir = private_folder(Path(args.data_dir))
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_Server(args, policy, data_dir).run())
    except FleetError as error:
        raise _cannot_start(error) from error
    return ExitCode.OK


def _cannot_start(error: FleetError) -> CliError:
    status = (
        ExitCode.USAGE
        if isinstance(error, BadNetwork | StorageRefused | StorageOfAnother)
        else ExitCode.FAILED
    )
    ended = isinstance(error, StoreLost)
    return fail(
        _("the server has ended") if ended else _("the server cannot start"),
        error.detail,
        error.next or "simpletuner doctor server",
        error.code,
        status,
    )


class _Server:
    def __init__(self, args: argparse.Namespace, policy: Policy, data_dir: Path) -> None:
        self._args = args
        self._policy = policy
        self._data_dir = data_dir
        self._public_url = args.public_url
        self._metrics_public = args.metrics_public
        self._beyond_loopback = not is_loopback(args.host)
        self._shares_port = self._beyond_loopback and not (args.ssl or args.ssl_cert or args.plain_http)
        """TLS for other machines without having been asked for it; plain HTTP goes on for this one and trusted proxies."""
        self._local = args.local if args.local is not None else not self._beyond_loopback
        self._database_url: str = args.database_url or f"sqlite:///{data_dir / SQLITE_FILE}"
        self._tls: tls.TlsFiles | None = None
        self._local_worker: LocalWorker | None = None
        self._store_trouble: str | None = None
        self._first_key: accounts.IssuedKey | None = None

    async def run(self) -> None:
        self._tls = self._certificate()
        blobs = open_blobs(self._args.storage_url, self._data_dir / "storage")
        index = FleetIndex()
        store = open_store(self._database_url)
        try:
            await self._run_on(store, index, blobs)
        finally:
            await store.close()
        if self._store_trouble:
            raise StoreLost(self._store_trouble)

    async def _run_on(self, store: Store, index: FleetIndex, blobs: Blobs) -> None:
        """From here on the data folder is ours alone: the store has let no other orchestrator in."""
        deps = self._compose(store, index, blobs)
        held_until = await hold_after_restore(deps.fleet)
        if held_until is not None:
            deps.background_tasks.start(place_after_hold(deps.fleet, held_until))
        await prove_storage(blobs)
        await claim_storage(deps.storage, adopt=self._args.adopt_storage)
        admin_token, admin_token_from = stored_admin_token(self._data_dir, self._args.admin_token)
        await people.set_admin_token(deps.fleet, admin_token)
        await note_start(deps.fleet, __version__)
        if not await deps.fleet.read(lambda view: view.users()):
            self._first_key = await accounts.first_key(deps.fleet, ORCHESTRATOR)
        if self._local:
            await self._know_local_worker(deps.fleet)
        runtime = Runtime(deps.fleet)
        sweeper = StorageSweeper(deps.storage)
        reserve = Reserve(self._data_dir) if self._database_url.startswith("sqlite:") else None
        keeper = SpaceKeeper(deps.space, reserve)
        keeper.start()
        if deps.audit_heads:
            await deps.audit_heads.start()
        await runtime.start()
        sweeper.start()
        places = Places(self._args.publish_url, self._args.hub_url)
        publisher = Publisher(deps.storage, places)
        publisher.start()
        watching = asyncio.create_task(self._watch(store))
        try:
            await self._serve(deps, admin_token_from)
        finally:
            watching.cancel()
            (self._data_dir / "server.json").unlink(missing_ok=True)
            await publisher.stop()
            await sweeper.stop()
            await keeper.stop()
            if deps.audit_heads:
                await deps.audit_heads.stop()
            await runtime.stop()
            await deps.background_tasks.finish(BACKGROUND_TASKS_TIMEOUT_S)

    async def _watch(self, store: Store) -> None:
        """A store that takes nothing any more is opened anew by a restart alone, and whoever restarts us waits for our end.

        The local worker and its trainer go on: the next server finds them.
        """
        trouble = None
        while not trouble:
            await asyncio.sleep(STORE_LOOK_S)
            trouble = store.find_trouble()
        log.critical("The server ends, to be started again. %s", trouble)
        self._store_trouble = trouble
        threading.Timer(
            GONE_WITHIN_S, os._exit, (ExitCode.FAILED,)
        ).start()  # a dead disk may hold up anything
        os.kill(os.getpid(), signal.SIGTERM)

    def _compose(self, store: Store, index: FleetIndex, blobs: Blobs) -> Deps:
        hub = StreamHub()
        ids = RandomIds(stored_secret(self._data_dir / "secret"))
        vault = SealedVault.at(self._data_dir / "secrets.key")
        fleet = Fleet(store, index, SteadyClock(), ids, hub, self._policy, vault)
        heads = AuditHeads(fleet, signing_key(self._data_dir / "audit.key"), self._heads_file())
        fleet.signed_heads = heads
        fleet.on_revoked = RevocationJournal(self._data_dir / JOURNAL_FILE, fleet.clock.now()).note
        return Deps(
            fleet=fleet,
            audit_heads=heads,
            hub=hub,
            blobs=blobs,
            credentials=remembered_credentials(fleet, hub),
            public_url=self._public_url,
            fingerprint=self._tls.fingerprint if self._tls and self._tls.ca else None,
            local_enabled=self._local,
            local_problem=lambda: self._local_worker.problem if self._local_worker else "",
            beyond_loopback=self._beyond_loopback,
            plain_for_own_machine_only=self._shares_port,
            metrics_public=self._metrics_public,
            space=self._space(),
        )

    def _heads_file(self) -> Path:
        named = self._args.audit_heads_file
        return Path(named).expanduser() if named else self._data_dir / "audit_heads.jsonl"

    def _space(self) -> SpaceWatch:
        least = self._args.min_free_gb
        folder = local_folder(self._args.storage_url, self._data_dir / "storage")
        return SpaceWatch(folder, None if least is None else int(least * 1e9))

    async def _serve(self, deps: Deps, admin_token_from: str) -> None:
        edge = build_api(
            deps,
            self._edge_settings(),
            tls.authority_routes(
                self._tls, lambda ip: deps.certificate_looks.note(ip, deps.fleet.clock.now())
            ),
            web_routes.ROUTES,
            problem_page,
        )
        context = tls.server_context(self._tls) if self._tls else None
        tune_garbage_collection()
        await serve(
            edge,
            self._args.host,
            self._args.port,
            context,
            lambda listening: self._ready(listening, admin_token_from),
            lambda: self._stop(deps, edge),
            on_hangup=lambda: self._reload(context),
            idle_timeout_s=idle_timeout_for(self._policy.heartbeat_interval_s),
            plain_from=self._plain_from() if self._shares_port else None,
        )

    def _plain_from(self) -> Callable[[str], bool]:
        proxies = Networks.parse(",".join(self._args.trusted_proxies))
        return lambda address: networks.is_loopback(address) or proxies.holds(address)

    def _certificate(self) -> tls.TlsFiles | None:
        args = self._args
        if args.ssl_cert:
            return tls.own_certificate(Path(args.ssl_cert), Path(args.ssl_key))
        if not args.ssl and not self._shares_port:
            return None
        names = [*args.ssl_san, *args.allowed_host]
        if self._public_url:
            names.append(urlsplit(self._public_url).hostname or "")
        if self._args.host not in ANY_ADDRESS:
            names.append(self._args.host)
        return tls.private_authority(self._data_dir, [name for name in names if name])

    def _edge_settings(self) -> EdgeSettings:
        args = self._args
        allowed = list(args.allowed_host)
        if self._public_url:
            allowed.append(urlsplit(self._public_url).hostname or "")
        return EdgeSettings(
            trust_loopback=args.trust_loopback,
            beyond_loopback=self._beyond_loopback,
            allowed_hosts=tuple(name for name in allowed if name),
            trusted_proxies=",".join(args.trusted_proxies),
            worker_networks=",".join(args.worker_networks),
            tls=self._tls is not None and not self._shares_port,
        )

    async def _know_local_worker(self, fleet: Fleet) -> None:
        path = self._data_dir / "local_worker_token"
        stored = read_private(path)
        _, token = await administer.local_worker(fleet, stored, ORCHESTRATOR)
        if token != stored:
            write_private(path, token)

    def _ready(self, listening: Listening, admin_token_from: str) -> None:
        url = self._own_url(listening)
        fingerprint = self._tls.fingerprint if self._tls else None
        document = {"url": url, "pid": os.getpid(), "fingerprint": fingerprint, "version": __version__}
        write_private(self._data_dir / "server.json", json.dumps(document))
        if self._local:
            self._local_worker = LocalWorker(self._data_dir, self._local_arguments(url, fingerprint))
            self._local_worker.start()
        self._announce(listening, admin_token_from)
        if self._args.open:
            # Starting a browser may take seconds, and the fleet does not wait.
            asyncio.get_running_loop().run_in_executor(
                None, open_page, self._console(listening), self._data_dir
            )
        for warning in self._warnings():
            log.warning("%s", warning)

    def _local_arguments(self, url: str, fingerprint: str | None) -> list[str]:
        words = ["--orchestrator-url", url, "--persistent", "--name", administer.LOCAL_NAME]
        words += ["--leave-after", f"{LOCAL_WORKER_LEAVES_AFTER_S:g}"]
        words += ["--worker-token-file", str(self._data_dir / "local_worker_token")]
        if self._args.trainer_python:
            words += ["--trainer-python", self._args.trainer_python]
        return (
            [*words, "--ssl-fingerprint", fingerprint] if fingerprint and url.startswith("https:") else words
        )

    def _own_url(self, listening: Listening) -> str:
        return own_url(listening, plain_for_loopback=self._shares_port)

    def _console(self, listening: Listening) -> str:
        """Returns where a person goes first; while there is nobody, the link that makes the first admin."""
        url = self._public_url or self._own_url(listening)
        return start_link(url, self._first_key) if self._first_key else url

    def _announce(self, listening: Listening, admin_token_from: str) -> None:
        rows = {
            N_("listening on"): self._public_url or listening.url,
            N_("data"): str(self._data_dir),
            N_("database"): without_password(self._database_url),
            N_("admin token"): admin_token_from,
            **({N_("fingerprint"): self._tls.fingerprint} if self._tls else {}),
            **({N_("plain HTTP"): N_("from this machine only")} if self._shares_port else {}),
            N_("local jobs"): N_("on") if self._local else N_("off (--local turns them on)"),
            N_("next"): "simpletuner workers create NAME",
        }
        if self._args.log_format == "json":  # which is kept and read by many: no link in there
            log.info("%s", ", ".join(f"{name}: {text}" for name, text in rows.items()))
            return
        if self._first_key:
            link = self._console(listening)
            rows[N_("first log-in")] = _("%(link)s (works once, for 15 minutes)", link=link)
        lines = [f"  {_(name):<12} {current().gettext(text)}" for name, text in rows.items()]
        print("\n".join([f"SimpleTuner Fleet {__version__}", *lines]), file=sys.stderr, flush=True)

    def _warnings(self) -> list[str]:
        warnings = []
        if self._beyond_loopback and not self._tls:
            warnings.append(
                "--plain-http: tokens and jobs travel unencrypted. Leave it out: other machines are then served by TLS"
            )
        sqlite = sqlite_warning() if self._database_url.startswith("sqlite:") else None
        return [*warnings, sqlite] if sqlite else warnings

    async def _stop(self, deps: Deps, edge: Edge) -> None:
        """Stops the local worker first: it still has to give its job back."""
        if self._local_worker and not self._store_trouble:
            await self._local_worker.stop()
        deps.stopping = True
        await edge.end_streams()

    def _reload(self, context: ssl.SSLContext | None) -> None:
        """Reads a renewed certificate at SIGHUP, without dropping anyone."""
        if context is None:
            log.info("nothing to read again: the server speaks plain HTTP")
            return
        try:
            self._tls = self._certificate() or self._tls
            if self._tls:
                tls.load_certificate(context, self._tls)
            log.info("the certificate was read again")
        except FleetError as error:
            log.error("the certificate was not read again: %s", error.detail)
