"""A hostile job against the wall around it, of every kind this machine can build: real processes, real thefts."""

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.agent.data.data_cache import DataCache
from simpletuner_fleet.agent.guard.shim_wall import landlock_version
from simpletuner_fleet.agent.isolation.walls import FIRST_UID, LAST_UID
from simpletuner_fleet.cli.programs.local_worker import environment_of
from simpletuner_fleet.core.training.checkpoint import FileEntry
from simpletuner_fleet.trainers.checkpoints import ask_by_signal_file
from simpletuner_fleet.trainers.job_files import open_job_file
from tests.e2e.kit import Json, World

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
NOBODY = 65534
KINDS = ("user", "namespace", "landlock")
WISH = {"user": "user", "namespace": "sandbox", "landlock": "landlock"}
UNMOUNTING = "unmounting"
"""Root in most containers: it may become any user, and mount nothing."""
AS_ROOT = ("user", UNMOUNTING)
is_root = os.geteuid() == 0


class Bench:
    """A folder outside pytest's own, which only its owner may enter; everything happens in there."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind = folder, kind
        self.home = folder / "home"
        (self.home / ".ssh").mkdir(parents=True)
        (self.home / ".ssh" / "id").write_text("canary-of-the-owner")
        if kind not in AS_ROOT and is_root:
            for path in (folder, self.home, self.home / ".ssh", self.home / ".ssh" / "id"):
                os.chown(path, NOBODY, NOBODY)

    def run(self, script: str, *options: str, asked: str = "", **variables: str) -> dict[str, Any]:
        done = self.try_run(script, *options, asked=asked, **variables)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def try_run(
        self, script: str, *options: str, asked: str = "", **variables: str
    ) -> "subprocess.CompletedProcess[str]":
        words = [sys.executable, str(HERE / "walled_run.py"), str(self.folder), asked or WISH[self.kind]]
        words += [str(HERE / script) if script.endswith(".py") else self.written(script), *options]
        modules = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), str(REPOSITORY)]
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home)}
        environment["PYTHONPATH"] = os.pathsep.join(one for one in modules if one)
        environment |= variables
        return subprocess.run(
            self.as_its_user(words),
            env=environment,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def written(self, script: str) -> str:
        file = self.folder / "job.py"
        file.write_text(script)
        return str(file)

    def as_its_user(self, words: list[str]) -> list[str]:
        """The kinds for workers without root are tried as one; where root's folder holds Python, others may see that."""
        if self.kind == "user" or not is_root:
            return words
        become = f"--reuid {NOBODY} --regid {NOBODY} --clear-groups"
        if self.kind == UNMOUNTING:
            become = "--bounding-set=-sys_admin"
        lines = ["mount --make-rprivate /", "mount -t tmpfs tmpfs /mnt", "mkdir /mnt/keep"]
        for folder in dict.fromkeys([sys.base_prefix, sys.prefix, str(REPOSITORY)]):
            closed = first_closed(Path(folder))
            if closed:
                lines += [f"mount --bind {shlex.quote(folder)} /mnt/keep"]
                lines += [f"mount -t tmpfs -o mode=755 tmpfs {closed}", f"mkdir -p {shlex.quote(folder)}"]
                lines += [f"mount --bind /mnt/keep {shlex.quote(folder)}", "umount /mnt/keep"]
        command = f"exec setpriv {become} {shlex.join(words)}"
        return ["unshare", "-m", "sh", "-e", "-c", "\n".join([*lines, command])]


def first_closed(folder: Path) -> Path | None:
    for one in [*reversed(folder.parents), folder]:
        if not one.stat().st_mode & 0o001:
            return one
    return None


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    kind = str(request.param)
    missing = what_is_missing(kind)
    if missing:
        pytest.skip(missing)
    with tempfile.TemporaryDirectory(prefix="walls-") as folder:
        Path(folder).chmod(0o755)
        yield Bench(Path(folder), kind)


def what_is_missing(kind: str) -> str:
    """Returns '' where this machine can build such a wall."""
    if sys.platform != "linux":
        return "walls are made of what Linux has"
    if kind == "user":
        return "" if is_root else "a user for each job needs root"
    if is_root and shutil.which("setpriv") is None:
        return "setpriv is needed to try it as somebody who is not root"
    if kind == "namespace":
        tried = subprocess.run(["unshare", "-U", "true"], capture_output=True, check=False)
        return "" if tried.returncode == 0 else "this kernel allows no user namespaces"
    return "" if landlock_version() else "this kernel has no Landlock"


def test_every_theft_is_refused(bench: Bench) -> None:
    seen = bench.run("hostile_job.py")
    assert (seen["kind"], seen["exit"]) == (bench.kind, 0), seen
    got = {theft: loot for theft, loot in json.loads(seen["output"]).items() if loot}
    assert not got
    assert seen["victim_alive"]
    assert seen["objects"] == ["cached data"]
    assert seen["forged"] == []


def test_what_training_needs_goes_on_working(bench: Bench) -> None:
    read, write = bench.folder / "read", bench.folder / "write"
    for folder in (read, write):
        folder.mkdir()
        folder.chmod(0o777)
    (read / "file").write_text("granted")
    grants = ("--job-path", f"{read}:ro", "--job-path", f"{write}:rw")
    seen = bench.run("ordinary_job.py", *grants, READ=str(read), WRITE=str(write))
    assert seen["exit"] == 0, seen
    assert (write / "new").read_text() == "written"
    uid = json.loads(seen["output"])["uid"]
    if bench.kind == "user":
        assert FIRST_UID < uid <= LAST_UID, "the first is the other job's"
    else:
        assert uid == (NOBODY if is_root else os.geteuid())


def test_root_that_may_not_mount_gives_each_job_a_user_all_the_same() -> None:
    missing = "" if is_root else "this is what root does"
    missing = missing or what_is_missing("landlock")
    if missing:
        pytest.skip(missing)
    with tempfile.TemporaryDirectory(prefix="walls-") as folder:
        Path(folder).chmod(0o755)
        bench = Bench(Path(folder), UNMOUNTING)
        seen = bench.run("hostile_job.py", asked="auto")
        assert (seen["kind"], seen["exit"]) == ("landlock", 0), seen
        assert not {theft: loot for theft, loot in json.loads(seen["output"]).items() if loot}
        assert seen["victim_alive"]
        assert seen["forged"] == []
        seen = bench.run(
            "import os; print(os.getuid(), open(os.path.join(os.getcwd(), 'mine'), 'w').write('x'))",
            asked="auto",
        )
        uid = int(seen["output"].split()[0])
        assert FIRST_UID < uid <= LAST_UID, seen


def test_root_whose_job_could_not_reach_its_folder_says_so() -> None:
    if not is_root or what_is_missing("landlock"):
        pytest.skip("this is what root does, with Landlock")
    with tempfile.TemporaryDirectory(prefix="walls-") as folder:
        bench = Bench(Path(folder), UNMOUNTING)
        done = bench.try_run("import os; print(os.getuid())", asked="auto")
        assert json.loads(done.stdout)["output"].strip() == "0"
        assert "jobs run as root behind Landlock" in done.stderr


LEAVES_A_DAEMON = """
import os, sys, time
DAEMON = '''
import signal, time
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
while True:
    open("FOLDER/beat", "a").write("x")
    time.sleep(0.01)
'''
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-c", DAEMON], {})
    os._exit(0)
while not os.path.exists("FOLDER/beat") or not os.path.getsize("FOLDER/beat"):
    time.sleep(0.01)
"""


def test_nothing_that_a_job_started_outlives_it(bench: Bench) -> None:
    beats = bench.folder / "beats"
    beats.mkdir()
    beats.chmod(0o777)
    seen = bench.run(LEAVES_A_DAEMON.replace("FOLDER", str(beats)), "--job-path", f"{beats}:rw")
    assert seen["exit"] == 0, seen
    size = (beats / "beat").stat().st_size
    time.sleep(0.3)
    assert (beats / "beat").stat().st_size == size > 0


def test_its_exit_code_and_its_signal_are_told_through_the_wall(bench: Bench) -> None:
    assert bench.run("raise SystemExit(7)")["exit"] == 7
    assert bench.run("import os; os.kill(os.getpid(), 11)")["signal"] == 11


def test_a_grant_that_would_show_the_workers_own_folder_is_refused_at_the_start(bench: Bench) -> None:
    (bench.folder / "state").mkdir(mode=0o700)
    if is_root and bench.kind != "user":
        os.chown(bench.folder / "state", NOBODY, NOBODY)
    refused = bench.try_run("pass", "--job-path", f"{bench.folder}/state:ro", asked="auto")
    assert refused.returncode
    assert "no job may access" in refused.stderr
    missing = bench.try_run("pass", "--job-path", "/no/such/folder:ro", asked="auto")
    assert missing.returncode
    assert "there is nothing of this name" in missing.stderr


def test_a_grant_around_the_workers_folder_does_not_show_it(bench: Bench) -> None:
    (bench.folder / "public").write_text("granted")
    script = f"""
print(open("{bench.folder}/public").read())
try:
    print(open("{bench.folder}/state/worker_token").read())
except OSError:
    print("refused")
"""
    seen = bench.run(script, "--job-path", f"{bench.folder}:ro")
    assert seen["output"].split() == ["granted", "refused"], seen


def test_auto_is_the_strongest_that_there_is(bench: Bench) -> None:
    if bench.kind == "landlock":
        pytest.skip("namespaces go before it")
    expected = "user" if bench.kind == "user" else "namespace"
    if what_is_missing(expected):
        pytest.skip(what_is_missing(expected))
    assert bench.run("pass", asked="auto")["kind"] == expected


def test_a_user_for_each_job_is_refused_without_root(bench: Bench) -> None:
    if bench.kind == "user":
        pytest.skip("root can always give a user")
    refused = bench.try_run("pass", asked="user")
    assert refused.returncode
    assert "does not run as root" in refused.stderr


GREEDY = """
import os, pathlib, sys
ranks = pathlib.Path(os.environ["SIMPLETUNER_RANK_LOG_DIR"])
ranks.mkdir()
wanted = [word[::-1] for word in sys.argv[1:]]
(ranks / "rank-1.log").symlink_to(wanted[0])
(pathlib.Path(os.environ["SIMPLETUNER_OUTPUT_DIR"]) / "model.bin").symlink_to(wanted[0])
for path in wanted:
    try:
        print("got", pathlib.Path(path).read_text())
    except OSError:
        print("refused")
print("server" if any("canary" in value for value in os.environ.values()) else "nothing of the server")
"""


def greedy(world: World, wanted: list[str]) -> Json:
    """Names the paths backwards: one that stands in a command and is not granted is refused before the start."""
    return world.command(
        sys.executable, "-c", GREEDY, *(path[::-1] for path in wanted), resources={"gpus": 0}
    )


@pytest.mark.e2e
@pytest.mark.skipif(bool(what_is_missing("user")) and bool(what_is_missing("namespace")), reason="no wall")
def test_a_real_worker_tells_its_wall_and_its_job_gets_neither_token_nor_server(world: World) -> None:
    worker = world.start_worker("gpu-1", "--isolation", "required")
    kind = worker.seen["reported_labels"]["isolation"]
    assert kind == ("user" if is_root else "namespace")
    (worker.work_dir / "worker_token").write_text("wt_canary")
    wanted = [
        str(worker.work_dir / "worker_token"),
        str(world.home / "admin_token"),
        str(world.home / "fleet.db"),
    ]
    bundle = greedy(world, wanted)
    job_id = world.submit(bundle, worker_labels={"isolation": kind})
    world.becomes(job_id, "completed")
    log = world.call("GET", f"/api/jobs/{job_id}/logs").text
    assert log.split("\n")[:4] == ["refused", "refused", "refused", "nothing of the server"]
    assert "canary" not in world.call("GET", f"/api/jobs/{job_id}/logs?rank=1").text
    assert world.get(f"/api/jobs/{job_id}/artifacts")["manifests"] == []


@pytest.mark.e2e
def test_a_job_that_asks_for_a_wall_waits_while_no_worker_has_one_and_says_so(world: World) -> None:
    worker = world.start_worker("gpu-1", "--isolation", "none")
    assert worker.seen["reported_labels"]["isolation"] == "none"
    bundle = world.command("true", resources={"gpus": 0})
    job_id = world.submit(bundle, worker_labels={"isolation": "user"})
    explained = json.dumps(world.explain(job_id))
    assert "isolation" in explained
    assert world.job(job_id)["status"] == "queued"


@pytest.mark.e2e
@pytest.mark.skipif(bool(what_is_missing("user")) and bool(what_is_missing("namespace")), reason="no wall")
def test_a_local_job_sees_neither_the_servers_data_nor_its_environment(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.environment |= {"SIMPLETUNER_ISOLATION": "auto", "AWS_SECRET_ACCESS_KEY": "canary-of-the-server"}
    world.local_as_usual = True
    try:
        world.start_server("--local")
        wanted = [str(world.home / name) for name in ("admin_token", "secrets.key", "local_worker_token")]
        bundle = greedy(world, wanted)
        job_id = world.submit(bundle, target="local")
        world.becomes(job_id, "completed")
        log = world.call("GET", f"/api/jobs/{job_id}/logs").text
        assert log.split("\n")[:4] == ["refused", "refused", "refused", "nothing of the server"]
        worker = int((world.home / "local_worker.pid").read_text())
        assert b"canary" not in Path(f"/proc/{worker}/environ").read_bytes()
    finally:
        world.close()


def test_the_worker_beside_a_server_must_have_a_wall_unless_its_owner_names_none() -> None:
    given = {"PATH": "/bin", "SIMPLETUNER_DATABASE_URL": "postgresql://x", "PGPASSWORD": "x", "HF_TOKEN": "x"}
    assert environment_of(given, Path("/data")) == {
        "PATH": "/bin",
        "SIMPLETUNER_ISOLATION": "required",
        "SIMPLETUNER_HOME": "/data",
    }
    chosen = environment_of({"SIMPLETUNER_ISOLATION": "none", "SIMPLETUNER_MAX_JOBS": "2"}, Path("/data"))
    assert (chosen["SIMPLETUNER_ISOLATION"], chosen["SIMPLETUNER_MAX_JOBS"]) == ("none", "2")


def test_what_the_agent_writes_for_a_job_follows_no_link_of_the_job(tmp_path: Path) -> None:
    """Root would otherwise write to whatever file the job names."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    asked = tmp_path / "job" / "signals.json"
    asked.parent.mkdir()
    asked.with_name(".signals.json.tmp").symlink_to(precious)
    assert ask_by_signal_file(asked)
    assert precious.read_text() == "precious"
    assert not asked.is_symlink()


def test_what_the_agent_sends_for_a_job_leads_out_of_its_folder_by_no_link(tmp_path: Path) -> None:
    job = tmp_path / "attempts" / "a_1" / "job"
    job.mkdir(parents=True)
    (tmp_path / "worker_token").write_text("wt_canary")
    (job / "own").write_text("own")
    (job / "link").symlink_to("own")
    (job / "token").symlink_to(tmp_path / "worker_token")
    (job / "way").symlink_to(tmp_path)
    os.mkfifo(job / "pipe")
    with open_job_file(job / "link") as file:
        assert file.read() == b"own"
    for trap in (job / "token", job / "way" / "worker_token", job / "pipe"):
        with pytest.raises(FileNotFoundError):
            open_job_file(trap)


def test_a_cached_file_that_foreign_hands_reached_is_read_again_before_the_next_job(tmp_path: Path) -> None:
    content = b"cached data"
    digest = hashlib.sha256(content).hexdigest()
    cache = DataCache.open(tmp_path / "cache", 10**9)
    try:
        cache.begin("a_1", {"d" * 64: (FileEntry(path="x", size=len(content), sha256=digest),)}, 0.0)
        cache.part_path(digest).write_bytes(content)
        assert cache.keep(digest, len(content))
        path = cache.object_path(digest)
        before = path.stat()
        cache.guard(False)
        path.chmod(0o644)
        path.write_bytes(b"poisoned!!!")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as a careful hand would leave it
        cache.guard(True)
        assert not cache.is_here(digest, len(content))
        cache.part_path(digest).write_bytes(content)
        assert cache.keep(digest, len(content))
        cache.guard(False)
        cache.object_path(digest).chmod(0o644)
        cache.object_path(digest).write_bytes(b"poisoned!!!")
        os.utime(cache.object_path(digest), ns=(before.st_atime_ns, before.st_mtime_ns))
        assert not cache.is_here(digest, len(content)), "without a wall every look is a reading"
    finally:
        cache.close()
