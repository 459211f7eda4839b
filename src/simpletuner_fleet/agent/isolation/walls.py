"""Makes the walls of one worker: chooses their kind, gives each attempt its user, and decides what each one shows."""

import contextlib
import fcntl
import logging
import os
import secrets
import shutil
import stat
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.agent.guard.orphans import end_group
from simpletuner_fleet.agent.guard.shim_client import Order, ReadyWall, Wall
from simpletuner_fleet.agent.guard.shim_starts import SHIM
from simpletuner_fleet.agent.guard.shim_wall import device_paths
from simpletuner_fleet.agent.isolation.path_access import PathAccess
from simpletuner_fleet.agent.isolation.places import (
    JobPath,
    Place,
    granted_places,
    in_order,
    lies_in,
    python_places,
    system_places,
    without_hidden,
)
from simpletuner_fleet.agent.state_dir import AttemptDir
from simpletuner_fleet.core.worker_errors import IsolationUnavailable, JobPathError
from simpletuner_fleet.trainers.contract import Launch
from simpletuner_fleet.trainers.job_trees import entries_beneath

log = logging.getLogger(__name__)

Kind = Literal["user", "namespace", "landlock"]
KINDS_ASKED_FOR: dict[str, tuple[Kind, ...]] = {"user": ("user",), "sandbox": ("namespace", "landlock")}
FIRST_UID, LAST_UID = 60578, 61183
"""Numbers that no distribution gives to people, services or containers."""
UID_LOCKS = Path("/run/simpletuner-uids")
TRIAL_S = 60.0
GPU_DEVICES = ("/dev/kfd", "/dev/dri")
NOT_FOR_JOBS = ("XDG_", "DBUS_", "SSH_", "SUDO_", "CREDENTIALS_DIRECTORY", "TMPDIR", "OLDPWD", "MAIL")
"""Variables of the worker that name places beyond the wall."""
CACHES = ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TRANSFORMERS_CACHE", "TORCH_HOME")
HUB_CACHES = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")
SPARE = "spare"
"""The folder of what is prepared for attempts that nobody knows yet."""
TRIAL = [sys.executable, "-I", "-S", str(SHIM.with_name("shim_trial.py"))]


class WallSurroundings(Struct, frozen=True, kw_only=True):
    """Names the paths and the environment that a worker's walls are made from."""

    home: str
    environment: dict[str, str]
    pythons: tuple[str, ...]
    grants: tuple[JobPath, ...]
    hidden: tuple[str, ...]
    """What no grant opens: the worker's own folders and those of a server."""


class Walls:
    """Makes the walls around one worker's attempts. It blocks: call it in a thread."""

    def __init__(
        self,
        kind: Kind | None,
        surroundings: WallSurroundings,
        folder: Path,
        slots: int,
        *,
        as_own_user: bool = False,
    ) -> None:
        """With `as_own_user` root gives each attempt a user of its own behind Landlock, too."""
        self.kind = kind
        self._about = surroundings
        self._folder = folder
        self._users = _Users(slots) if kind == "user" or as_own_user else None
        self._fixed: list[Place] = []
        self._mounts: tuple[bytes, tuple[str, ...]] = (b"", ())
        """What the machine has mounted, as last seen, and those of it that are shown behind walls."""
        if kind:
            self._fixed = [
                *system_places(),
                *python_places(surroundings.pythons, surroundings.environment),
                *granted_places(surroundings.grants),
                *((path, path, "hide") for path in surroundings.hidden),
            ]
        if self._users and kind == "user":
            self._fixed.append((str(self._users.write_names(folder, surroundings.home)), "/etc/passwd", "ro"))
        self._path_access = PathAccess(self._fixed, own_user=kind == "user") if kind else None

    @property
    def name(self) -> str:
        return self.kind or "none"

    def raise_around(
        self,
        attempt: AttemptDir,
        data: Path | None,
        launch: Launch,
        chosen: Collection[str],
        cache: Path | None = None,
        downloads: Path | None = None,
        ready: ReadyWall | None = None,
    ) -> tuple[Launch, Wall | None]:
        """Gives the attempt's folders to its user and returns how to start it; `chosen` variables are the job's own.

        `cache` is what its trainer keeps between attempts; data that is shown in there it may write beside. `downloads` is
        where models from the Hub are kept for jobs of the same owner. Where a wall stands already (`ready`, of which the
        attempt's folder was made), the one returned holds what is to be added.
        """
        if self.kind is None:
            return launch, None
        job = attempt.job_dir
        kept = [folder for folder in (cache, downloads) if folder]
        views: list[Place] = [(str(folder), str(folder), "rw") for folder in kept]
        if data and data.is_dir() and not (cache and data.is_relative_to(cache)):
            views.append((str(data), str(data), "ro"))
        if ready:
            wall = replace(ready.wall, places=in_order([(str(job), str(job), "rw"), *views]))
        else:
            for folder in (attempt.home_dir, attempt.temporary_dir):
                folder.mkdir(mode=0o700, exist_ok=True)
            wall = self._wall([*self._own_places(job), *views], attempt.attempt_id)
        if wall.uid is not None and wall.gid is not None:
            for folder in (job, *kept):
                _give(folder, wall.uid, wall.gid)
            if self.kind == "landlock":
                for folder in (job, *(Path(source) for source, _, _ in views)):
                    self._open_way_to(folder)
        own = {name: launch.env[name] for name in chosen if name in launch.env}
        environment = {**self._environment(launch.env, job), **own}
        if downloads and not environment.keys() & set(HUB_CACHES):
            environment["HF_HUB_CACHE"] = str(downloads)
        return Launch(argv=launch.argv, env=environment, cwd=launch.cwd), wall

    def ready(self) -> ReadyWall | None:
        """Prepares a wall for an attempt that is not known yet; None where that saves nothing, or is not possible."""
        if self.kind not in ("user", "namespace"):
            return None
        folder = AttemptDir(self._folder / SPARE / secrets.token_hex(6))
        try:
            seen = self._seen()
            for path in folder.folders_for_new():
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            room: Place = (str(self._folder), str(self._folder), "room")
            wall = self._wall([*self._own_places(folder.job_dir)[1:], room], folder.attempt_id)
            if wall.uid is not None and wall.gid is not None:
                _give(folder.job_dir, wall.uid, wall.gid)
        except OSError as error:
            log.warning("no wall could be prepared: %s", error)
            shutil.rmtree(folder.path, ignore_errors=True)
            self.lower(folder.attempt_id)
            return None
        return ReadyWall(folder=folder.path, wall=wall, seen=seen)

    def forget_spares(self) -> None:
        """Removes those of the process before this one, which has ended with all its shims that had no attempt."""
        if not self.kind:
            return
        for folder in (self._folder / SPARE).glob("*"):
            end_group(folder)
        shutil.rmtree(self._folder / SPARE, ignore_errors=True)

    def discard(self, ready: ReadyWall) -> None:
        """Removes one of which no attempt was made, or whose attempt is over."""
        self.lower(ready.folder.name)
        end_group(ready.folder)  # elsewhere once an attempt has moved in, whose group it is then
        shutil.rmtree(ready.folder, ignore_errors=True)

    def move_in(self, ready: ReadyWall, attempt: AttemptDir) -> bool:
        """Makes its folder the attempt's; False where that has one already."""
        try:
            ready.folder.rename(attempt.path)
        except OSError:
            return False
        if self._users and ready.wall.uid is not None:
            self._users.take_back(ready.folder.name)
            self._users.hold(attempt.attempt_id, ready.wall.uid)
        return True

    def is_up_to_date(self, ready: ReadyWall) -> bool:
        """Returns whether one that is built now would show the same."""
        return ready.seen == self._seen()

    def _seen(self) -> tuple[object, ...]:
        """Returns whatever a wall shows that may be another thing later: what is mounted, replaced or plugged in."""
        shown = [source for source, _, access in self._fixed if access != "hide"]
        with open("/proc/self/mountinfo", "rb", buffering=0) as file:
            mounts = file.readall()
        if mounts != self._mounts[0]:
            lines = mounts.decode("utf-8", "surrogateescape").splitlines()
            within = (line for line in lines if _lies_in_any(line.split(" ", 5)[4], shown))
            self._mounts = (mounts, tuple(within))
        return (self._mounts[1], *device_paths("/dev"), *map(_identity, shown))

    def path_access(self) -> PathAccess | None:
        """Returns what jobs see beside their own folders; None where they see everything."""
        return self._path_access

    @property
    def home(self) -> str:
        return self._about.home

    def clean(self, cache: Path) -> None:
        """Makes the cache the worker's again after the attempt, and removes links that could lead it elsewhere."""
        if self.kind is None:
            return
        within = os.path.realpath(cache)
        if self._users:
            os.chown(cache, os.geteuid(), os.getegid(), follow_symlinks=False)
        for entry in entries_beneath(cache):
            if entry.is_symlink():
                if self._users or not Path(os.path.realpath(entry.path)).is_relative_to(within):
                    os.unlink(entry.path)
            elif self._users:
                os.chown(entry.path, os.geteuid(), os.getegid(), follow_symlinks=False)

    def _open_way_to(self, folder: Path) -> None:
        """Lets users of jobs pass through the worker's own folders, whose content Landlock and its modes keep from them."""
        for one in folder.parents:
            if not one.is_relative_to(self._folder):
                return
            mode = stat.S_IMODE(one.stat().st_mode)
            if not mode & stat.S_IXOTH:
                one.chmod(mode | stat.S_IXOTH)

    def lower(self, attempt_id: str) -> None:
        """Frees the attempt's user for another, once no process of the attempt is left."""
        if self._users:
            self._users.take_back(attempt_id)

    def take_up(self, attempt: AttemptDir) -> None:
        """Takes up an attempt of an earlier process that still runs behind its wall."""
        if self._users:
            with contextlib.suppress(OSError):
                self._users.hold(attempt.attempt_id, attempt.job_dir.stat().st_uid)

    def problem(self) -> str:
        """Builds a wall as a trial; returns why it cannot be built, or ''."""
        with contextlib.ExitStack() as after:
            trial = AttemptDir(self._folder / "trial")
            after.callback(shutil.rmtree, trial.path, ignore_errors=True)
            trial.job_dir_for_new().mkdir(mode=0o700, parents=True, exist_ok=True)
            python = self._about.pythons[0]
            argv = [python, "-I", "-c", "open('written', 'w').close()"]
            launch = Launch(argv=argv, env=dict(self._about.environment), cwd=str(trial.job_dir))
            try:
                launch, wall = self.raise_around(trial, None, launch, ())
            except OSError as error:
                return error.strerror or str(error)
            finally:
                self.lower(trial.attempt_id)
            return _tried(trial, launch, wall)

    def _wall(self, own: list[Place], attempt_id: str) -> Wall:
        assert self.kind is not None
        places = [*self._fixed, *own]
        if self.kind == "landlock":
            # The attempt's own folder lies in what is hidden: it is opened after the rest was taken apart.
            wall = Wall(kind=self.kind, places=[*without_hidden(self._fixed), *own])
        else:
            wall = Wall(kind=self.kind, places=in_order(places), home=self._about.home)
        if self._users:
            uid = self._users.give(attempt_id)
            return replace(wall, uid=uid, gid=uid, groups=_gpu_groups())
        return wall

    def _own_places(self, job: Path) -> list[Place]:
        """The job's own folder comes first."""
        if self.kind == "landlock":
            return [(str(job), str(job), "rw")]
        home, temporary = str(job / "home"), str(job / "tmp")
        return [
            (str(job), str(job), "rw"),
            (home, self._about.home, "rw"),
            (temporary, "/tmp", "rw"),
            (temporary, "/var/tmp", "rw"),
        ]

    def _environment(self, given: Mapping[str, str], job: Path) -> dict[str, str]:
        kept = {name: value for name, value in given.items() if not name.startswith(NOT_FOR_JOBS)}
        for name in CACHES:
            if name in kept and not self._is_granted(kept[name]):
                del kept[name]
        if self.kind == "landlock":
            _link_grants(job / "home", self._about.home, self._about.grants)
            return {**kept, "HOME": str(job / "home"), "TMPDIR": str(job / "tmp")}
        if self.kind == "user":
            kept |= {"USER": "job", "LOGNAME": "job"}
        return {**kept, "HOME": self._about.home, "TMPDIR": "/tmp"}

    def _is_granted(self, path: str) -> bool:
        real = Path(os.path.realpath(path))
        return any(real.is_relative_to(os.path.realpath(grant.path)) for grant in self._about.grants)


NO_WALLS = Walls(None, WallSurroundings(home="", environment={}, pythons=(), grants=(), hidden=()), Path(), 0)


def choose_walls(asked: str, surroundings: WallSurroundings, folder: Path, slots: int) -> Walls:
    """Returns the strongest that this machine allows and `asked` names.

    Raises IsolationUnavailable where there must be one.
    """
    check_grants(surroundings)
    if asked == "none":
        return Walls(None, surroundings, folder, slots)
    usual: tuple[Kind, ...] = ("user", "landlock") if os.geteuid() == 0 else ("namespace", "landlock")
    problems = []
    for kind, as_own_user in _tries(KINDS_ASKED_FOR.get(asked, usual)):
        if kind == "user" and os.geteuid() != 0:
            problems.append("user: the worker does not run as root")
            continue
        if kind == "namespace" and os.geteuid() == 0:
            continue  # root within would own what root owns without
        walls = Walls(kind, surroundings, folder, slots, as_own_user=as_own_user)
        problem = "not Linux" if sys.platform != "linux" else walls.problem()
        if not problem:
            if kind == "landlock" and os.geteuid() == 0 and not as_own_user:
                log.warning(
                    "jobs run as root behind Landlock, for as a user of their own they cannot work here (%s); a "
                    "--work-dir and a trainer's Python that other users may reach would change that",
                    problems[-1],
                )
            return walls
        problems.append(f"{kind}{' as a user of its own' if as_own_user else ''}: {problem}")
    if asked != "auto":
        raise IsolationUnavailable(
            f"Jobs cannot be separated from this machine ({'; '.join(problems)}), and --isolation {asked} asks for it."
        )
    log.warning(
        "jobs are not separated from this worker: they can read its token and each other's files (%s)",
        "; ".join(problems),
    )
    return Walls(None, surroundings, folder, slots)


def _tries(kinds: tuple[Kind, ...]) -> list[tuple[Kind, bool]]:
    """Returns what to try. Root gives a job its own user behind Landlock, too, unless that cannot reach its folders."""
    as_root = os.geteuid() == 0
    return [
        (kind, own)
        for kind in kinds
        for own in ((True, False) if as_root and kind == "landlock" else (False,))
    ]


def check_grants(surroundings: WallSurroundings) -> None:
    for grant in surroundings.grants:
        if not os.path.exists(grant.path):
            raise JobPathError(f"--job-path {grant.path}: there is nothing of this name.")
        if grant.path == "/":
            raise JobPathError("--job-path / would grant the whole machine.")
        real = Path(os.path.realpath(grant.path))
        for hidden in surroundings.hidden:
            if real.is_relative_to(os.path.realpath(hidden)):
                raise JobPathError(f"--job-path {grant.path} lies in {hidden}, which no job may access.")


class _Users:
    """Reserves a Unix user for each slot, which no other worker of this machine gives away meanwhile."""

    def __init__(self, slots: int) -> None:
        self._locks: dict[int, int] = {}
        self._given: dict[str, int] = {}
        UID_LOCKS.mkdir(mode=0o700, exist_ok=True)
        for _ in range(slots + 1):  # one more, for the trial and then for whoever comes next
            self._lock_another()

    def _lock_another(self) -> int | None:
        for uid in range(FIRST_UID, LAST_UID + 1):
            if uid in self._locks or uid in self._given.values():
                continue
            lock = os.open(UID_LOCKS / str(uid), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            self._locks[uid] = lock
            return uid
        return None

    def give(self, attempt_id: str) -> int:
        if attempt_id in self._given:
            return self._given[attempt_id]
        taken = set(self._given.values())
        uid = next((uid for uid in self._locks if uid not in taken), None)
        if uid is None:  # attempts that have ended keep theirs until their results are stored
            uid = self._lock_another()
        if uid is None:
            raise OSError(f"no user is free for the job ({FIRST_UID} to {LAST_UID})")
        self._given[attempt_id] = uid
        return uid

    def hold(self, attempt_id: str, uid: int) -> None:
        self._given[attempt_id] = uid

    def take_back(self, attempt_id: str) -> None:
        self._given.pop(attempt_id, None)

    def write_names(self, folder: Path, home: str) -> Path:
        """Writes down the machine's users and the jobs' own: many programs ask who they are."""
        file = folder / "passwd"
        with contextlib.suppress(FileNotFoundError):
            file.unlink()
        lines = [Path("/etc/passwd").read_text(errors="replace").rstrip("\n")]
        lines += [
            f"job{uid - FIRST_UID}:x:{uid}:{uid}::{home}:/bin/sh" for uid in range(FIRST_UID, LAST_UID + 1)
        ]
        file.write_text("\n".join(lines) + "\n")
        file.chmod(0o644)
        return file


def _give(folder: Path, uid: int, gid: int) -> None:
    """Gives the folder to the job's user before the job starts, so nothing in there is a trap.

    What is linked from the worker's own folders stays the worker's.
    A checkpoint may be linked from the job's attempt before, whose user wrote it for itself alone.
    """
    os.chown(folder, uid, gid)
    for entry in entries_beneath(folder):
        facts = entry.stat(follow_symlinks=False)
        is_shown = stat.S_ISREG(facts.st_mode) and facts.st_nlink > 1 and facts.st_uid == os.geteuid()
        if not is_shown and (facts.st_uid, facts.st_gid) != (uid, gid):
            os.chown(entry.path, uid, gid, follow_symlinks=False)


def _lies_in_any(path: str, folders: Iterable[str]) -> bool:
    return any(lies_in(path, folder) for folder in folders)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


def _gpu_groups() -> list[int]:
    """Returns the groups to which AMD's and Intel's devices are open."""
    groups = set()
    for path in GPU_DEVICES:
        for one in [Path(path), *(Path(path).glob("*") if os.path.isdir(path) else ())]:
            with contextlib.suppress(OSError):
                facts = one.stat()
                if stat.S_ISCHR(facts.st_mode) and facts.st_gid:
                    groups.add(facts.st_gid)
    return sorted(groups)


def _link_grants(home: Path, real_home: str, grants: Iterable[JobPath]) -> None:
    """Links what was granted of the worker's home into the job's own, where programs look for it."""
    for grant in grants:
        path = Path(os.path.abspath(grant.path))
        if real_home and path.is_relative_to(real_home) and str(path) != real_home:
            link = home / path.relative_to(real_home)
            link.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                link.symlink_to(path)


def _tried(trial: AttemptDir, launch: Launch, wall: Wall | None) -> str:
    order = Order(
        attempt_id=trial.attempt_id,
        attempt_dir=str(trial.path),
        argv=launch.argv,
        env=launch.env,
        cwd=launch.cwd,
        output=str(trial.output_log),
        wall=wall,
    )
    try:
        answer = subprocess.run(
            TRIAL,
            input=msgspec.json.encode(order),
            capture_output=True,
            timeout=TRIAL_S,
            check=False,
            env={},
            cwd="/",
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if answer.returncode == 0:
        return ""
    said = answer.stdout.decode(errors="replace").strip() or answer.stderr.decode(errors="replace")[-300:]
    output = trial.output_log.read_text(errors="replace").strip() if trial.output_log.exists() else ""
    return " ".join(" ".join([said, output.rpartition("\n")[2]]).split())
