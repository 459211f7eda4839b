"""Runs `simpletuner server`: puts everything together, alone or as one of several orchestrators."""

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

from simpletuner_fleet import __version__
from simpletuner_fleet.blobs.opening import StorageRefused, open_blobs
from simpletuner_fleet.cli.frame.command_name import as_called
from simpletuner_fleet.cli.frame.errors import CliError, ExitCode, fail
from simpletuner_fleet.cli.frame.private_files import private_folder, stored_secret, write_private
from simpletuner_fleet.cli.programs.addresses import (
    ANY_ADDRESS,
    internal_url,
    own_url,
    reached_at,
    without_password,
)
from simpletuner_fleet.cli.programs.admin_token import check_admin_token, stored_admin_token
from simpletuner_fleet.cli.programs.browser import open_page
from simpletuner_fleet.cli.programs.leading.audit_key import stored_audit_key
from simpletuner_fleet.cli.programs.leading.leader_election import LeaderElection
from simpletuner_fleet.cli.programs.leading.leader_services import LeaderServices, ServerPlan
from simpletuner_fleet.cli.programs.leading.shared_files import SharedFiles, SharedItem
from simpletuner_fleet.cli.programs.logging_setup import set_up_logging
from simpletuner_fleet.cli.programs.server_loop import ServerLoop
from simpletuner_fleet.cli.programs.server_policy import policy_of
from simpletuner_fleet.cli.programs.sign_in_file import read_sign_in_file
from simpletuner_fleet.client.trust import is_loopback
from simpletuner_fleet.core.errors import FleetError, StorageOfAnother, StoreUnavailable
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.http.access import networks
from simpletuner_fleet.http.access.networks import BadNetwork, Networks
from simpletuner_fleet.http.api.admin.accounts import start_link
from simpletuner_fleet.http.edge.exchange import Application
from simpletuner_fleet.http.server import tls
from simpletuner_fleet.http.server.garbage import tune_garbage_collection
from simpletuner_fleet.http.server.serving import Hook, Listening, idle_timeout_for, serve
from simpletuner_fleet.languages import N_, _, current
from simpletuner_fleet.orchestrator.people import accounts
from simpletuner_fleet.orchestrator.sign_in.ways import SignInSettings
from simpletuner_fleet.ports import Blobs, Store
from simpletuner_fleet.storage.ownership import FLEET_ID, insist_on_mark
from simpletuner_fleet.store import open_store
from simpletuner_fleet.store.opening import POSTGRES_PREFIXES
from simpletuner_fleet.store.sealing import KeyFile

log = logging.getLogger(__name__)

SQLITE_FILE = "fleet.db"
STORE_LOOK_S = 1.0
GONE_WITHIN_S = 10.0
SWITCH_INTERVAL_S = 0.0001
"""How long the event loop may keep the thread that commits from going on: each of a commit's statements asks for the
interpreter again, and with the usual 5 ms a commit under load would take longer than the disk needs."""


class StoreLost(StoreUnavailable):
    """It accepts nothing until it is reopened."""

    next_step = "Check the disk, then restart the server. A service restarts on its own."


def run_server(args: argparse.Namespace) -> int:
    set_up_logging(args.log_format, verbose=args.verbose)
    policy = policy_of(args)
    sign_in = read_sign_in_file(args.sign_in_file, args.trusted_proxies)
    if args.admin_token:
        check_admin_token(args.admin_token, "SIMPLETUNER_ADMIN_TOKEN")
    data_dir = private_folder(Path(args.data_dir))
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        with asyncio.Runner(loop_factory=ServerLoop) as runner:
            runner.run(_Server(args, policy, data_dir, sign_in).run())
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
    def __init__(
        self, args: argparse.Namespace, policy: Policy, data_dir: Path, sign_in: SignInSettings
    ) -> None:
        self._args = args
        self._sign_in = sign_in
        self._policy = policy
        self._data_dir = data_dir
        self._public_url = args.public_url
        self._beyond_loopback = not is_loopback(args.host)
        self._shares_port = self._beyond_loopback and not (args.ssl or args.ssl_cert or args.plain_http)
        """TLS for other machines without having been asked for it; plain HTTP goes on for this one and trusted proxies."""
        self._local = args.local if args.local is not None else not self._beyond_loopback
        self._database_url: str = args.database_url or f"sqlite:///{data_dir / SQLITE_FILE}"
        self._key_file = Path(args.secrets_key_file or data_dir / "secrets.key")
        self._tls: tls.TlsFiles | None = None
        self._store_trouble: str | None = None
        self._first_key: accounts.IssuedKey | None = None
        self._noted = False
        """Whether `server.json` is ours: one that did not get so far leaves that of the server which runs here."""

    async def run(self) -> None:
        try:
            if self._database_url.startswith(POSTGRES_PREFIXES):
                await self._run_among_others()
            else:
                await self._run_alone()
        finally:
            if self._noted:
                (self._data_dir / "server.json").unlink(missing_ok=True)
        if self._store_trouble:
            raise StoreLost(self._store_trouble)

    async def _run_alone(self) -> None:
        """Runs as the only orchestrator: from opening the store on, no other one can use the data folder."""
        KeyFile(self._key_file).read()
        store = open_store(self._database_url)
        try:
            self._tls = self._certificate()
            blobs = self._open_blobs()
            services = LeaderServices(self._plan(blobs), store)
            await services.begin()
            watching = asyncio.create_task(self._watch(store))
            try:
                await self._serve(
                    services.edge,
                    lambda at: self._ready(at, services),
                    lambda: services.end_streams(keep_local_worker=self._store_trouble is not None),
                )
            finally:
                watching.cancel()
                await services.end()
        finally:
            await store.close()

    async def _watch(self, store: Store) -> None:
        """Ends the server when the store accepts nothing any more.

        Only a restart reopens the store, and whoever restarts us waits for our end. The local worker and its trainer
        go on: the next server finds them.
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

    async def _run_among_others(self) -> None:
        """Runs as one of several orchestrators on the same database, one of which leads."""
        # A SQLite user need not pay for its import.
        from simpletuner_fleet.store.lease_book import PostgresLeaseBook

        book = PostgresLeaseBook(self._database_url)
        await asyncio.to_thread(book.open)
        shared = SharedFiles(PostgresLeaseBook(self._database_url), self._data_dir, self._key_file)
        await asyncio.to_thread(shared.bring, self._shared_items(at_start=True))
        self._tls = self._certificate()
        blobs = self._open_blobs()
        if not self._args.adopt_storage:
            await insist_on_mark(blobs, await asyncio.to_thread(book.setting, FLEET_ID))
        key = KeyFile(self._key_file).read()
        assert key is not None, "what is shared was sealed with it"

        def make_store(term: int) -> Store:
            # Another server may have been given a new admin token meanwhile.
            shared.bring(self._shared_items(at_start=False))
            return open_store(self._database_url, term)

        election = LeaderElection(
            book,
            key,
            make_store,
            lambda store, term: LeaderServices(self._plan(blobs), store, term),
            tls=self._tls is not None and not self._shares_port,
        )
        stop = asyncio.Event()
        try:
            await self._serve(
                election.roles,
                lambda at: self._start_election(at, election, stop),
                election.end_streams,
                stop,
            )
        finally:
            await election.stop()

    def _start_election(self, listening: Listening, election: LeaderElection, stop: asyncio.Event) -> None:
        """Starts the election; the server listens already, and finds out now whether it leads."""
        url = self._args.internal_url or internal_url(listening, self._database_url)
        election.on_leading = lambda services: self._start_local_worker(listening, services)
        election.start(
            url,
            self._tls.fingerprint if self._tls else "",
            lambda services: self._ready(listening, services),
            stop.set,
        )

    def _shared_items(self, *, at_start: bool) -> list[SharedItem]:
        folder, token = self._data_dir, self._args.admin_token
        items = [
            SharedItem(name="secret", files=("secret",), make=lambda: stored_secret(folder / "secret")),
            SharedItem(
                name="audit", files=("audit.key",), make=lambda: stored_audit_key(folder / "audit.key")
            ),
            SharedItem(
                name="admin",
                files=("admin_token",),
                make=lambda: stored_admin_token(folder, token),
                ours_counts=bool(at_start and token),
            ),
        ]
        if (self._args.ssl or self._shares_port) and not self._args.ssl_cert:
            files = ("tls/ca.pem", "tls/ca-key.pem")
            items.append(SharedItem(name="tls", files=files, make=self._certificate))
        return items

    def _open_blobs(self) -> Blobs:
        return open_blobs(self._args.storage_url, self._data_dir / "storage")

    def _plan(self, blobs: Blobs) -> ServerPlan:
        return ServerPlan(
            args=self._args,
            policy=self._policy,
            data_dir=self._data_dir,
            key_file=self._key_file,
            blobs=blobs,
            local=self._local,
            beyond_loopback=self._beyond_loopback,
            shares_port=self._shares_port,
            uses_sqlite=self._database_url.startswith("sqlite:"),
            tls_files=self._tls,
            sign_in=self._sign_in,
        )

    async def _serve(
        self,
        app: Application,
        on_ready: Callable[[Listening], None],
        before_shutdown: Hook,
        stop: asyncio.Event | None = None,
    ) -> None:
        context = tls.server_context(self._tls) if self._tls else None
        tune_garbage_collection()
        await serve(
            app,
            self._args.host,
            self._args.port,
            context,
            on_ready,
            before_shutdown,
            stop=stop,
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

    def _ready(self, listening: Listening, services: LeaderServices | None) -> None:
        """Announces that the server is ready; `services` is None where another orchestrator leads."""
        url = self._own_url(listening)
        fingerprint = self._tls.fingerprint if self._tls else None
        document = {"url": url, "pid": os.getpid(), "fingerprint": fingerprint, "version": __version__}
        self._first_key = services.first_key if services else None
        if services and self._database_url.startswith("sqlite:"):
            self._start_local_worker(listening, services)
        admin_token_from = services.admin_token_from if services else str(self._data_dir / "admin_token")
        self._announce(listening, admin_token_from)
        # Who waits for this file then also finds what was printed.
        write_private(self._data_dir / "server.json", json.dumps(document))
        self._noted = True
        if self._args.open:
            # Starting a browser may take seconds, and the fleet does not wait.
            asyncio.get_running_loop().run_in_executor(
                None, open_page, self._console(listening), self._data_dir
            )
        self._warn()

    def _start_local_worker(self, listening: Listening, services: LeaderServices) -> None:
        services.start_local_worker(self._own_url(listening), self._tls.fingerprint if self._tls else None)

    def _own_url(self, listening: Listening) -> str:
        return own_url(listening, plain_for_loopback=self._shares_port)

    def _console(self, listening: Listening) -> str:
        """Returns the console's address; while there are no users, the link that creates the first admin."""
        url = self._public_url or self._own_url(listening)
        return start_link(url, self._first_key) if self._first_key else url

    def _announce(self, listening: Listening, admin_token_from: str) -> None:
        rows = {
            N_("listening on"): listening.url,
            N_("reached at"): reached_at(self._args, listening),
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
            rows[N_("first log-in")] = _("%(link)s (works once, within 15 minutes)", link=link)
        lines = [f"  {_(name):<12} {current().gettext(text)}" for name, text in rows.items()]
        print(as_called("\n".join([f"SimpleTuner Fleet {__version__}", *lines])), file=sys.stderr, flush=True)

    def _warn(self) -> None:
        if self._beyond_loopback and not self._tls:
            log.warning(
                "--plain-http: tokens and jobs travel unencrypted. Leave it out: other machines are then served by TLS"
            )

    def _reload(self, context: ssl.SSLContext | None) -> None:
        """Reads a renewed certificate at SIGHUP, without dropping connections."""
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
