"""Which control groups a worker can have, told from what lies there; folders stand for the kernel's."""

import os
from pathlib import Path

import pytest

from simpletuner_fleet.agent.guard import shim_cgroup
from simpletuner_fleet.agent.guard.orphans import end_group
from simpletuner_fleet.agent.isolation.cgroup_place import CgroupPlace, find_place
from simpletuner_fleet.agent.isolation.cgroups import Cgroups, JobLimits, choose_cgroups
from simpletuner_fleet.agent.state_dir import AttemptDir
from simpletuner_fleet.core.worker_errors import JobLimitUnavailable
from simpletuner_fleet.core.workers.job_groups import GroupLack

ALL = {"memory", "pids"}


def group_at(
    folder: Path, controllers: str = "", handed_on: str = "", pids: str = "", root: bool = False
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("cgroup.controllers", controllers),
        ("cgroup.subtree_control", handed_on),
        ("cgroup.procs", pids),
        *([] if root else [("cgroup.type", "domain")]),
    ):
        (folder / name).write_text(text)
    return folder


def place(folder: Path, **facts: object) -> CgroupPlace:
    return CgroupPlace(**{"folder": folder, "own": folder / "agent", **facts})  # type: ignore[arg-type]


def test_what_is_handed_on_already_is_had(tmp_path: Path) -> None:
    there = place(group_at(tmp_path, "cpu memory pids", "memory pids"))
    assert there.could_have(ALL) == (ALL, None)
    assert there.hand_on(ALL) is None
    assert (tmp_path / "cgroup.subtree_control").read_text() == "memory pids", "nothing was written"


def test_controllers_that_are_there_are_handed_on(tmp_path: Path) -> None:
    there = place(group_at(tmp_path, "cpu memory pids"))
    assert there.could_have(ALL) == (ALL, None)
    assert there.hand_on(ALL) is None
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory +pids"


def test_a_worker_alone_in_its_group_makes_room_for_its_jobs(tmp_path: Path) -> None:
    there = place(group_at(tmp_path, "memory pids", pids=f"{os.getpid()}\n"), own=tmp_path)
    group_at(tmp_path / "agent")
    assert there.could_have(ALL) == (ALL, None)
    assert there.hand_on(ALL) is None
    assert (tmp_path / "agent/cgroup.procs").read_text() == str(os.getpid())


@pytest.mark.parametrize(
    ("controllers", "pids", "name", "systemd", "had", "lack"),
    [
        ("hugetlb", "", "x", False, set(), GroupLack.NO_CONTROLLER),
        ("pids", "", "x", False, {"pids"}, GroupLack.NO_CONTROLLER),
        ("memory pids", "1 {own}", "x", False, set(), GroupLack.SHARED),
        ("memory pids", "", "x.service", False, set(), GroupLack.OLD_SYSTEMD),
        ("memory pids", "", "x", True, set(), GroupLack.NOT_DELEGATED),
    ],
)
def test_what_cannot_be_had_is_said(
    tmp_path: Path, controllers: str, pids: str, name: str, systemd: bool, had: set[str], lack: GroupLack
) -> None:
    folder = group_at(tmp_path / name, controllers, pids=pids.format(own=os.getpid()))
    assert place(folder, own=folder, systemd=systemd).could_have(ALL) == (had, lack)
    assert (folder / "cgroup.subtree_control").read_text() == ""


def test_the_root_of_all_groups_may_hold_processes(tmp_path: Path) -> None:
    folder = group_at(tmp_path, "memory pids", pids="1 2 3", root=True)
    assert place(folder, own=folder).could_have(ALL) == (ALL, None)


def test_a_group_around_this_one_bounds_the_default(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("3000000000")
    inner = group_at(tmp_path / "inner")
    (inner / "memory.max").write_text("max")
    assert place(inner).memory_bytes() == 3_000_000_000


def proc_with(folder: Path, mounts: str, groups: str) -> Path:
    (folder / "self").mkdir(parents=True)
    (folder / "self/mountinfo").write_text(mounts)
    (folder / "self/cgroup").write_text(groups)
    return folder


def mount_line(root: str, at: Path) -> str:
    shown = str(at).replace(" ", "\\040")
    return f"30 24 0:26 {root} {shown} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.mark.parametrize(
    ("root", "name", "own", "within"),
    [
        ("/", "/", ".", "."),
        ("/", "/system.slice/w.service/agent", "system.slice/w.service/agent", "system.slice/w.service"),
        ("/docker/abc", "/docker/abc", ".", "."),
        ("/docker/abc", "/docker/abc/x", "x", "x"),
    ],
)
def test_its_place_is_found(tmp_path: Path, root: str, name: str, own: str, within: str) -> None:
    tree = tmp_path / "a tree"
    (tree / own).mkdir(parents=True)
    v1 = "31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    proc = proc_with(tmp_path / "proc", v1 + mount_line(root, tree), f"4:memory:/x\n0::{name}\n")
    where = find_place(proc, tmp_path / "run")
    assert where == CgroupPlace(folder=tree / within, own=tree / own, systemd=False)


@pytest.mark.parametrize(
    ("root", "groups"), [("/other", "0::/mine\n"), ("/", "4:memory:/\n"), ("/", "0::/gone\n")]
)
def test_where_its_group_is_not_to_be_seen_there_is_none(tmp_path: Path, root: str, groups: str) -> None:
    proc = proc_with(tmp_path / "proc", mount_line(root, tmp_path), groups)
    assert find_place(proc, tmp_path / "run") is GroupLack.NOT_MOUNTED


def test_an_attempts_group_has_its_limits_before_anything_is_in_there(tmp_path: Path) -> None:
    attempt = AttemptDir(tmp_path / "a_1")
    attempt.path.mkdir()
    tree = tmp_path / "tree"
    tree.mkdir()
    group = Path(Cgroups(tree, None, memory_bytes=5_000_000_000, pids=77).group_for(attempt))
    assert (group.parent, group.name[:8]) == (tree, "job-a_1-")
    limits = {file.name: file.read_text() for file in group.iterdir()}
    assert limits == {"memory.max": "5000000000", "memory.oom.group": "1", "pids.max": "77"}
    assert (attempt.path / shim_cgroup.NAME_FILE).read_text() == str(group)


def test_a_note_that_a_power_cut_has_spoiled_keeps_nobody_from_starting(tmp_path: Path) -> None:
    attempt = AttemptDir(tmp_path / "a_1")
    attempt.path.mkdir()
    (attempt.path / shim_cgroup.NAME_FILE).write_bytes(b"/sys/fs/\xff\xfe\0")
    assert end_group(attempt.path) is False
    tree = tmp_path / "tree"
    tree.mkdir()
    assert Path(Cgroups(tree, None).group_for(attempt)).parent == tree


def test_two_nodes_of_a_worker_on_one_machine_have_a_group_each_for_their_parts(tmp_path: Path) -> None:
    """Each ends its own alone, and knows it again though its folder is named by another path then."""
    tree = tmp_path / "tree"
    tree.mkdir()
    groups = {}
    for node in ("first", "second"):
        attempt = AttemptDir(tmp_path / node / "a_1")
        attempt.path.mkdir(parents=True)
        groups[node] = Path(Cgroups(tree, None).group_for(attempt))
    (tmp_path / "again").symlink_to("first")
    end_group(tmp_path / "again" / "a_1")
    assert [group.is_dir() for group in groups.values()] == [False, True]


def test_a_note_that_names_anothers_group_ends_nothing(tmp_path: Path) -> None:
    attempt = AttemptDir(tmp_path / "a_1")
    attempt.path.mkdir()
    other = tmp_path / "job-a_2"
    other.mkdir()
    (attempt.path / shim_cgroup.NAME_FILE).write_text(str(other))
    assert end_group(attempt.path) is False
    assert other.is_dir()


@pytest.mark.parametrize(
    ("memory", "pids", "ended_well", "said"),
    [
        ("oom 3\noom_kill 1\n", "max 9\n", False, "memory limit of its worker, 2.5 GB (--job-memory-gb)"),
        (
            "oom 0\noom_kill 0\n",
            "max 9\n",
            False,
            "process limit of its worker, 64 processes and threads (--job-pids)",
        ),
        ("oom 0\noom_kill 0\n", "max 0\n", False, None),
        ("oom 1\noom_kill 1\n", "max 1\n", True, None),
        ("nonsense", "", False, None),
    ],
)
def test_an_end_by_a_limit_is_told_as_that(
    tmp_path: Path, memory: str, pids: str, ended_well: bool, said: str | None
) -> None:
    for name, text in (
        ("memory.events", memory),
        ("pids.events", pids),
        ("memory.max", "2500000000"),
        ("pids.max", "64"),
    ):
        (tmp_path / name).write_text(text)
    sentence = shim_cgroup.limit_reached(str(tmp_path), ended_well)
    assert sentence == (said and f"the job reached the {said}")


def test_a_limit_that_was_asked_for_and_cannot_be_held_keeps_the_worker_from_starting() -> None:
    with pytest.raises(
        JobLimitUnavailable, match=r"--job-memory-gb 64 .*there is no cgroup v2 on this machine"
    ):
        choose_cgroups(JobLimits(memory_gb=64), GroupLack.NOT_MOUNTED)
    with pytest.raises(JobLimitUnavailable, match="--job-pids 100 "):
        choose_cgroups(JobLimits(pids=100), GroupLack.READ_ONLY)
    assert choose_cgroups(JobLimits(memory_gb=0, pids=0), GroupLack.NOT_MOUNTED).parts == "none"


@pytest.mark.parametrize(
    ("groups", "labels", "sentence"),
    [
        (
            Cgroups(Path("/x"), None, memory_bytes=60_000_000_000, pids=100),
            {"cgroup": "kill+memory+pids", "job_memory_gb": "60.0", "job_pids": "100"},
            "kill, at most 60.0 GB of memory for each job, at most 100 processes and threads for each job",
        ),
        (
            Cgroups(Path("/x"), GroupLack.NOT_DELEGATED),
            {"cgroup": "kill", "cgroup_lacks": "not-delegated"},
            "kill only, no memory limit, no process limit: the controller is not delegated",
        ),
        (
            Cgroups(Path("/x"), GroupLack.NO_CONTROLLER, pids=9),
            {"cgroup": "kill+pids", "job_pids": "9", "cgroup_lacks": "no-controller"},
            "kill, no memory limit, at most 9 processes and threads for each job: the controller is not there",
        ),
        (
            Cgroups(Path("/x"), None),
            {"cgroup": "kill"},
            "kill only, no memory limit, no process limit",
        ),
        (
            Cgroups(None, GroupLack.NOT_MOUNTED),
            {"cgroup": "none", "cgroup_lacks": "not-mounted"},
            "none: there is no cgroup v2 on this machine",
        ),
    ],
)
def test_nothing_is_called_had_that_is_not(groups: Cgroups, labels: dict[str, str], sentence: str) -> None:
    assert groups.labels() == labels
    assert groups.sentence() == sentence
