"""Holds what the composition root passes to every handler."""

import asyncio
import copy
import time
from collections.abc import Callable, Collection
from typing import Any, cast

from msgspec import Struct, field

from simpletuner_fleet.core.errors import InvalidToken, StoreUnavailable
from simpletuner_fleet.core.jobs.submitting.submit_request import Submitter
from simpletuner_fleet.core.people.visibility import VisibilityScope
from simpletuner_fleet.core.workers.join_host import HowSure, join_host
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.memory.organisation import Organisation
from simpletuner_fleet.engine.streams import StreamHub, Wakeups
from simpletuner_fleet.engine.visibility import CallersFleet, ScopedFleet
from simpletuner_fleet.http.access.auth import Principal
from simpletuner_fleet.http.access.credential_cache import CachedCredentials
from simpletuner_fleet.http.access.limits import Buckets, Rate, address_key
from simpletuner_fleet.http.access.networks import addresses_for_others, without_port
from simpletuner_fleet.http.api.open_streams import FOLLOWERS, SEARCHES, STREAMS, Open
from simpletuner_fleet.http.api.service.kept_figures import KeptFigures
from simpletuner_fleet.http.api.telemetry import Telemetry
from simpletuner_fleet.http.edge.routes import Call
from simpletuner_fleet.orchestrator.machines.provisioner import Provisioner
from simpletuner_fleet.orchestrator.notices.deliverer import Deliverer
from simpletuner_fleet.orchestrator.people.passwords import Passwords
from simpletuner_fleet.orchestrator.publishing import Publisher
from simpletuner_fleet.orchestrator.runtime import BackgroundTasks
from simpletuner_fleet.orchestrator.sign_in.ways import SignIn
from simpletuner_fleet.ports import Blobs
from simpletuner_fleet.storage.audit.heads import AuditHeads
from simpletuner_fleet.storage.space import SpaceWatch
from simpletuner_fleet.storage.storage import Storage
from simpletuner_fleet.storage.uploads.direct import DirectStorage

SEE_ALL, LOOK_AFTER_MACHINES = "admin.see_all", "admin.machines"
PATTERN_SEARCHES = 2
REFUSALS_NOTED = Rate(1 / 60, 5)
LOGINS_PER_ADDRESS = Rate(20 / 60, 20)
LOGINS_PER_NAME = Rate(10 / 60, 10)
LOGINS_PER_NAME_IN_ALL = Rate(30 / 60, 60)
TRIALS = Rate(1 / 10, 3)
FAILED_LOGINS_NOTED = Rate(1, 60)
SIGN_INS_PER_ADDRESS = Rate(2, 120)
"""A whole company may come from one address on a Monday morning."""


class LoginDoor:
    """Limits how often passwords may be guessed. A log-in that succeeds was not a guess.

    Guesses are counted by address, and by name and address; those at one name from everywhere are counted, too, but
    not against who has logged in from the same address before: nobody can lock others out by guessing at their names.
    """

    KNOWN = 10_000

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._by_address = Buckets(LOGINS_PER_ADDRESS, monotonic)
        self._by_both = Buckets(LOGINS_PER_NAME, monotonic)
        self._by_name = Buckets(LOGINS_PER_NAME_IN_ALL, monotonic)
        self._known: dict[str, None] = {}
        """Who was let in from where, the last of them last."""
        self.noted = Buckets(FAILED_LOGINS_NOTED, monotonic)
        """Failures that are worth an audit entry, all together."""

    def knock(self, ip: str, name: str) -> None:
        self._by_address.spend(address_key(ip))
        both = self._both(ip, name)
        self._by_both.spend(both)
        if both not in self._known:
            self._by_name.spend(name.casefold())

    def welcome(self, ip: str, name: str) -> None:
        both = self._both(ip, name)
        self._by_address.give_back(address_key(ip))
        self._by_both.give_back(both)
        if both not in self._known:
            self._by_name.give_back(name.casefold())
        self._known.pop(both, None)
        self._known[both] = None
        if len(self._known) > self.KNOWN:
            del self._known[next(iter(self._known))]

    @staticmethod
    def _both(ip: str, name: str) -> str:
        return f"{address_key(ip)} {name.casefold()}"


class CertificateLooks:
    """Remembers who asked for our authority's certificate, and when last.

    A worker asks for it before it sends its token: one that pins another fingerprint gives up after that, and this
    request is the only trace of it.
    """

    KEPT = 64

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def note(self, ip: str, at: float) -> None:
        self._last.pop(ip, None)
        if len(self._last) >= self.KEPT:
            del self._last[next(iter(self._last))]
        self._last[ip] = at

    def between(self, since: float, until: float) -> list[tuple[str, float]]:
        return [(ip, at) for ip, at in self._last.items() if since <= at <= until]


def end_no_streams(token_hashes: Collection[str]) -> None:
    """Does nothing: no edge serves any streams yet."""


class JoinAddress(Struct, frozen=True, kw_only=True):
    """Describes the address at which another machine reaches this orchestrator."""

    url: str
    sure: HowSure
    """How sure that is: `named`, `called`, `guessed` or `loopback`."""
    others: tuple[str, ...] = ()
    """Where it may be reached as well, where `url` was guessed."""
    to_change: str = ""
    """How the server is started so that others reach it, where nobody does."""


class Deps(Struct, kw_only=True):
    fleet: Fleet
    hub: StreamHub
    blobs: Blobs
    credentials: CachedCredentials
    background_tasks: BackgroundTasks = field(default_factory=BackgroundTasks)
    log_wakeups: Wakeups = field(default_factory=Wakeups)
    log_searches: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(PATTERN_SEARCHES))
    """Each search holds a process of its own."""
    telemetry: Telemetry = field(default_factory=Telemetry)
    kept_figures: KeptFigures = field(default_factory=KeptFigures)
    noted_refusals: Buckets = field(default_factory=lambda: Buckets(REFUSALS_NOTED, time.monotonic))
    """Refused registrations that are worth an audit entry, per worker."""
    deliverer: Deliverer | None = None
    """None: this orchestrator tells nobody of anything."""
    noted_trials: Buckets = field(default_factory=lambda: Buckets(TRIALS, time.monotonic))
    """Test messages, per endpoint."""
    provisioner: Provisioner | None = None
    """None: this orchestrator looks after no machines, as in tests."""
    publisher: Publisher | None = None
    """None: this orchestrator publishes nothing by itself, as in tests."""
    passwords: Passwords = field(default_factory=Passwords)
    login_door: LoginDoor = field(default_factory=LoginDoor)
    submitters: dict[tuple[Principal, str], Submitter] = field(default_factory=dict)
    """Who submitted lately, by who called and from where."""
    submitters_in: Organisation | None = None
    """The organisation in which that holds."""
    sign_in: SignIn = field(default_factory=SignIn)
    """The ways in beside the password."""
    sign_in_rate: Buckets = field(default_factory=lambda: Buckets(SIGN_INS_PER_ADDRESS, time.monotonic))
    end_streams_of: Callable[[Collection[str]], None] = end_no_streams
    """Ends what was opened with these credentials, by their hashes."""
    public_url: str | None = None
    """The URL at which workers reach this orchestrator; None means wherever the caller did."""
    fingerprint: str | None = None
    """The fingerprint of our own certificate authority."""
    certificate_looks: CertificateLooks = field(default_factory=CertificateLooks)
    local_enabled: bool = False
    local_problem: Callable[[], str] = lambda: ""
    """Says why the worker beside the server stays off; '' where it does not."""
    beyond_loopback: bool = False
    """The server is bound to more than this machine."""
    bound_to: str = "127.0.0.1"
    line_for_others: str = "simpletuner server --host 0.0.0.0 --port 8001"
    """How it is started so that other machines reach it."""
    addresses: Callable[[], list[str]] = addresses_for_others
    """The machine's own, by which others may find it."""
    plain_for_own_machine_only: bool = False
    """Other machines reach this server by TLS, though this one may do without."""
    metrics_public: bool = False
    stopping: bool = False
    watching: Open = field(default_factory=lambda: Open(STREAMS))
    """The open event streams."""
    following: Open = field(default_factory=lambda: Open(FOLLOWERS))
    """The logs that are followed."""
    searching: Open = field(default_factory=lambda: Open(SEARCHES))
    """The searches of logs that are under way."""
    proven_at: float | None = None
    """When the store was last seen to accept a write."""
    proving: "asyncio.Task[None] | None" = None
    """The look at store and storage that is under way, for all who ask meanwhile."""
    reading: "asyncio.Task[str | None] | None" = None
    """A read among people's reads, for which no probe waits: with it a thread that hangs is known to."""

    audit_heads: AuditHeads | None = None
    """None: this orchestrator signs no heads of its audit log."""
    space: SpaceWatch = field(default_factory=SpaceWatch)
    storage_proven_at: float | None = None
    """When the storage was last seen to take, give and let go."""

    direct: DirectStorage | None = None
    """None: every file goes through this orchestrator."""
    _storage: Storage | None = None

    @property
    def storage(self) -> Storage:
        """Returns the one storage that all share, since it holds the locks."""
        self._storage = self._storage or Storage(self.fleet, self.blobs, self.space, self.direct)
        return self._storage

    @property
    def provisioning(self) -> Provisioner:
        if self.provisioner is None:
            raise StoreUnavailable("This orchestrator is still starting; nothing was changed.")
        return self.provisioner

    def revoke(self, token_hashes: Collection[str]) -> None:
        """Forgets these credentials and ends their streams. Call it right after the commit and before the answer."""
        for token_hash in token_hashes:
            self.credentials.forget(token_hash)
        self.end_streams_of(token_hashes)

    def base_url(self, call: Call[Any]) -> str:
        return self.public_url or f"{'https' if call.secure else 'http'}://{call.headers.get('host', '')}"

    def join_address(self, call: Call[Any]) -> JoinAddress:
        """Returns where another machine reaches this orchestrator, whichever way the caller came."""
        if self.public_url:
            return JoinAddress(url=self.public_url, sure=HowSure.NAMED)
        scheme = "https" if call.secure or self.plain_for_own_machine_only else "http"
        called = call.headers.get("host", "")
        host = without_port(called)
        port = called.removeprefix(f"[{host}]").removeprefix(host)
        to_join = join_host(self.bound_to, host, self.addresses())
        urls = [
            f"{scheme}://{one if ':' not in one else f'[{one}]'}{port}"
            for one in (to_join.host, *to_join.others)
        ]
        to_change = self.line_for_others if to_join.sure is HowSure.LOOPBACK else ""
        return JoinAddress(url=urls[0], sure=to_join.sure, others=tuple(urls[1:]), to_change=to_change)


class ScopedDeps:
    """Gives a handler everything that it needs, with the fleet as its caller may see it."""

    __slots__ = ("_whole", "fleet")
    _whole: Deps
    fleet: Fleet

    def __init__(self, whole: Deps, fleet: Fleet) -> None:
        object.__setattr__(self, "_whole", whole)
        object.__setattr__(self, "fleet", fleet)

    @property
    def storage(self) -> Storage:
        """Returns the same files and locks, with the fleet as the caller may see it."""
        seen = copy.copy(self._whole.storage)
        seen.fleet = self.fleet
        return seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._whole, name, value)


def whole_deps(call: Call[Any]) -> Deps:
    """Returns unrestricted deps, for what concerns the server and not its caller: figures without names, health."""
    deps: Deps = call.app
    return deps


def deps_of(call: Call[Any]) -> Deps:
    """Returns what the caller may see: without `admin.see_all`, a person or token sees only their part of the fleet.

    Every handler goes through this. Of nobody's long looks several run at once, whatever they may see.
    """
    deps: Deps = call.app
    caller = call.principal
    if caller.kind not in ("token", "user", "loopback"):
        return deps
    if caller.kind == "loopback" or caller.can(SEE_ALL):
        return cast(Deps, ScopedDeps(deps, CallersFleet(deps.fleet, caller.owner_id or caller.id)))
    return cast(Deps, ScopedDeps(deps, ScopedFleet(deps.fleet, lambda: visibility_scope_of(call))))


def visibility_scope_of(call: Call[Any]) -> VisibilityScope:
    caller, organisation = call.principal, whole_deps(call).fleet.organisation
    return organisation.visibility_scope(
        (caller.id, caller.owner_id),
        above=caller.can(SEE_ALL),
        looks_after_machines=caller.can(LOOK_AFTER_MACHINES),
    )


deps = deps_of
"""The name under which pages know it."""


async def own_worker(call: Call[Any]) -> Worker:
    """Returns the caller's row as it is now: what was cached at the admission may be outdated."""
    worker = await deps_of(call).fleet.read_now(lambda view: view.worker(call.principal.id))
    if worker is None or worker.token_hash != call.principal.token_hash:
        raise InvalidToken
    return worker
