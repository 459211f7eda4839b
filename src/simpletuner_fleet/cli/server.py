"""`simpletuner server`: everything put together, once."""

import argparse
import asyncio
import json
import logging
import os
import ssl
import sys
from pathlib import Path
from urllib.parse import urlsplit

import uvloop

from simpletuner_fleet import __version__
from simpletuner_fleet.blobs.opening import StorageRefused, open_blobs
from simpletuner_fleet.cli.browser import open_page
from simpletuner_fleet.cli.errors import CliError, Exit, fail, usage
from simpletuner_fleet.cli.local_worker import LocalWorker
from simpletuner_fleet.cli.logs_setup import set_up_logging
from simpletuner_fleet.cli.private_files import kept_secret, private_folder, read_private, write_private
from simpletuner_fleet.client.trust import is_loopback
from simpletuner_fleet.core import tokens
from simpletuner_fleet.core.errors import FleetError, InvalidToken
from simpletuner_fleet.core.events import ORCHESTRATOR
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.http import tls
from simpletuner_fleet.http.accounts_api import start_link
from simpletuner_fleet.http.api import build_api
from simpletuner_fleet.http.auth import refuse_misshapen_api_token
from simpletuner_fleet.http.credentials import remembered_credentials
from simpletuner_fleet.http.deps import Deps
from simpletuner_fleet.http.edge import Edge, EdgeSettings
from simpletuner_fleet.http.networks import BadNetwork
from simpletuner_fleet.http.server import Listening, serve
from simpletuner_fleet.languages import N_, _, current
from simpletuner_fleet.orchestrator import accounts, administer, people
from simpletuner_fleet.orchestrator.clock import SteadyClock
from simpletuner_fleet.orchestrator.fleet import Fleet
from simpletuner_fleet.orchestrator.ids import RandomIds
from simpletuner_fleet.orchestrator.index import FleetIndex
from simpletuner_fleet.orchestrator.runtime import Runtime, note_start
from simpletuner_fleet.orchestrator.streams import StreamHub
from simpletuner_fleet.ports import Blobs, Store
from simpletuner_fleet.storage.sweeper import StorageSweeper
from simpletuner_fleet.store import open_store, sqlite_warning
from simpletuner_fleet.store.sealing import SealedVault
from simpletuner_fleet.web import routes as web_routes
from simpletuner_fleet.web.problems import problem_page

log = logging.getLogger(__name__)

SQLITE_FILE = "fleet.db"
GIB = 2**30
ERRANDS_TIMEOUT_S = 0.5
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def run_server(args: argparse.Namespace) -> int:
    set_up_logging(args.log_format, verbose=args.verbose)
    policy = policy_of(args)
    if args.admin_token:
        check_admin_token(args.admin_token, "SIMPLETUNER_ADMIN_TOKEN")
    data_dir = private_folder(Path(args.data_dir))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_Server(args, policy, data_dir).run())
    except FleetError as error:
        raise _told(error) from error
    return Exit.OK


def policy_of(args: argparse.Namespace) -> Policy:
    if args.heartbeat_timeout_s <= args.heartbeat_interval_s:
        raise usage(
            _("the heartbeat timeout is not longer than the heartbeat interval"),
            _(
                "%(heartbeat_timeout_s)s s of silence would be normal with a heartbeat every "
                "%(heartbeat_interval_s)s s",
                heartbeat_timeout_s=f"{args.heartbeat_timeout_s:g}",
                heartbeat_interval_s=f"{args.heartbeat_interval_s:g}",
            ),
            _("set SIMPLETUNER_HEARTBEAT_TIMEOUT to three or four times SIMPLETUNER_HEARTBEAT_INTERVAL"),
        )
    pings = args.ping_interval_s or min(Policy().ping_interval_s, args.heartbeat_timeout_s / 8)
    return Policy(
        heartbeat_interval_s=args.heartbeat_interval_s,
        heartbeat_timeout_s=args.heartbeat_timeout_s,
        max_retries=args.max_retries,
        ephemeral_ttl_s=args.ephemeral_ttl_s,
        offer_timeout_s=args.offer_timeout_s,
        offer_resend_s=args.offer_resend_s,
        ping_interval_s=pings,
        retry_backoff_s=args.retry_backoff_s,
        cancel_grace_s=args.cancel_grace_s,
        checkpoint_wait_s=args.checkpoint_wait_s,
        token_warn_age_s=args.token_warn_age_s,
        require_approval=args.require_approval,
        checkpoints_keep=args.checkpoints_keep,
        job_storage_bytes=args.job_storage_gb * GIB,
        data_storage_bytes=args.data_storage_gb * GIB,
        object_grace_s=args.object_grace_s,
        jobs_keep_days=args.jobs_keep_days,
    )


def _told(error: FleetError) -> CliError:
    status = Exit.USAGE if isinstance(error, BadNetwork | StorageRefused) else Exit.FAILED
    return fail(
        _("the server cannot start"),
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
        self._local = args.local if args.local is not None else not self._beyond_loopback
        self._database_url: str = args.database_url or f"sqlite:///{data_dir / SQLITE_FILE}"
        self._tls: tls.TlsFiles | None = None
        self._local_worker: LocalWorker | None = None
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

    async def _run_on(self, store: Store, index: FleetIndex, blobs: Blobs) -> None:
        """From here on the data folder is ours alone: the store has let no other orchestrator in."""
        house = self._compose(store, index, blobs)
        admin_token, admin_token_from = self._admin_token()
        await people.set_admin_token(house.fleet, admin_token)
        await note_start(house.fleet, __version__)
        if not await house.fleet.read(lambda view: view.users()):
            self._first_key = await accounts.first_key(house.fleet, ORCHESTRATOR)
        if self._local:
            await self._know_local_worker(house.fleet)
        runtime = Runtime(house.fleet)
        sweeper = StorageSweeper(house.storage)
        await runtime.start()
        sweeper.start()
        try:
            await self._serve(house, admin_token_from)
        finally:
            (self._data_dir / "server.json").unlink(missing_ok=True)
            await sweeper.stop()
            await runtime.stop()
            await house.errands.finish(ERRANDS_TIMEOUT_S)

    def _compose(self, store: Store, index: FleetIndex, blobs: Blobs) -> Deps:
        hub = StreamHub()
        ids = RandomIds(kept_secret(self._data_dir / "secret"))
        vault = SealedVault.at(self._data_dir / "secrets.key")
        fleet = Fleet(store, index, SteadyClock(), ids, hub, self._policy, vault)
        return Deps(
            fleet=fleet,
            hub=hub,
            blobs=blobs,
            credentials=remembered_credentials(fleet, hub),
            public_url=self._public_url,
            fingerprint=self._tls.fingerprint if self._tls and self._tls.ca else None,
            local_enabled=self._local,
            beyond_loopback=self._beyond_loopback,
            metrics_public=self._metrics_public,
        )

    async def _serve(self, house: Deps, admin_token_from: str) -> None:
        edge = build_api(
            house,
            self._edge_settings(),
            tls.authority_routes(
                self._tls, lambda ip: house.certificate_looks.note(ip, house.fleet.clock.now())
            ),
            web_routes.ROUTES,
            problem_page,
        )
        context = tls.server_context(self._tls) if self._tls else None
        await serve(
            edge,
            self._args.host,
            self._args.port,
            context,
            lambda listening: self._ready(listening, admin_token_from),
            lambda: self._stop(house, edge),
            on_hangup=lambda: self._reload(context),
        )

    def _admin_token(self) -> tuple[str, str]:
        """The token and where a person finds it."""
        given: str | None = self._args.admin_token
        path = self._data_dir / "admin_token"
        kept = given or read_private(path)
        if kept is None:
            kept = RandomIds(os.urandom(tokens.SECRET_BYTES)).token(tokens.API)
        check_admin_token(kept, str(path))
        write_private(path, kept)
        return kept, f"{path} (from SIMPLETUNER_ADMIN_TOKEN)" if given else str(path)

    def _certificate(self) -> tls.TlsFiles | None:
        args = self._args
        if args.ssl_cert:
            return tls.own_certificate(Path(args.ssl_cert), Path(args.ssl_key))
        if not args.ssl:
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
            tls=self._tls is not None,
        )

    async def _know_local_worker(self, fleet: Fleet) -> None:
        path = self._data_dir / "local_worker_token"
        kept = read_private(path)
        _, token = await administer.local_worker(fleet, kept, ORCHESTRATOR)
        if token != kept:
            write_private(path, token)

    def _ready(self, listening: Listening, admin_token_from: str) -> None:
        url = own_url(listening)
        fingerprint = self._tls.fingerprint if self._tls else None
        said = {"url": url, "pid": os.getpid(), "fingerprint": fingerprint, "version": __version__}
        write_private(self._data_dir / "server.json", json.dumps(said))
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
        words += ["--worker-token-file", str(self._data_dir / "local_worker_token")]
        return [*words, "--ssl-fingerprint", fingerprint] if fingerprint else words

    def _console(self, listening: Listening) -> str:
        """Where a person goes first; while there is nobody, by the link that makes the first admin."""
        url = self._public_url or own_url(listening)
        return start_link(url, self._first_key) if self._first_key else url

    def _announce(self, listening: Listening, admin_token_from: str) -> None:
        rows = {
            N_("listening on"): self._public_url or listening.url,
            N_("data"): str(self._data_dir),
            N_("database"): without_password(self._database_url),
            N_("admin token"): admin_token_from,
            **({N_("fingerprint"): self._tls.fingerprint} if self._tls else {}),
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
        found = []
        if self._beyond_loopback and not self._tls and not self._args.trusted_proxies:
            found.append(
                "tokens and jobs travel unencrypted: use --ssl, or terminate TLS at a reverse proxy "
                "(--trusted-proxies)"
            )
        sqlite = sqlite_warning() if self._database_url.startswith("sqlite:") else None
        return [*found, sqlite] if sqlite else found

    async def _stop(self, house: Deps, edge: Edge) -> None:
        """The local worker first: it still wants to give its job back."""
        if self._local_worker:
            await self._local_worker.stop()
        house.stopping = True
        await edge.end_streams()

    def _reload(self, context: ssl.SSLContext | None) -> None:
        """SIGHUP: a renewed certificate, without dropping anyone."""
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


def own_url(listening: Listening) -> str:
    """Where this machine itself reaches the server."""
    host = ANY_ADDRESS.get(listening.host, listening.host)
    return Listening(host, listening.port, listening.tls).url


def without_password(url: str) -> str:
    parts = urlsplit(url)
    if not parts.scheme.startswith("postgres"):
        return url
    return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"


def check_admin_token(token: str, where: str) -> None:
    try:
        refuse_misshapen_api_token(token)
    except InvalidToken as error:
        raise usage(
            _("the admin token of %(where)s cannot be used", where=where),
            error.detail,
            _("use a token of the form st_…, or any string of 32 or more characters without blanks"),
        ) from None
