"""A token given as a flag does not stay where other users can see it."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from simpletuner_fleet.cli.programs.hide_token import without_token

PROGRAM = textwrap.dedent(
    """
    import os, sys, types
    from pathlib import Path

    def run_worker(args):
        print(Path("/proc/self/cmdline").read_bytes().replace(b"\\0", b" ").decode())
        print("token", args.worker_token, args.sources["worker_token"].where)
        print("name", args.name, args.persistent, args.label)
        print("inherited", [name for name in os.environ if "TOKEN" in name])
        return 7

    root = types.ModuleType("simpletuner_fleet.cli.programs.worker")
    root.run_worker = run_worker
    sys.modules[root.__name__] = root
    from simpletuner_fleet.cli.main import main
    sys.exit(main())
    """
)


def worker(tmp_path: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "simpletuner"
    script.write_text(PROGRAM)
    return subprocess.run(
        [sys.executable, str(script), "worker", "--orchestrator-url", "http://127.0.0.1:1", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environ},
        check=False,
    )


@pytest.mark.parametrize("spelled", [["--worker-token", "wt_secret"], ["--worker-token=wt_secret"]])
def test_the_flag_is_gone_from_the_command_line_and_the_token_arrives(
    tmp_path: Path, spelled: list[str]
) -> None:
    done = worker(tmp_path, *spelled, "--name", "gpu-worker-1", "--persistent", "--label", "a=b")
    assert done.returncode == 7, done.stderr
    cmdline, token, name, inherited = done.stdout.splitlines()
    assert "wt_secret" not in cmdline
    assert "--worker-token" not in cmdline
    assert "--orchestrator-url http://127.0.0.1:1 --name gpu-worker-1 --persistent --label a=b" in cmdline
    assert token == "token wt_secret flag --worker-token"
    assert name == "name gpu-worker-1 True {'a': 'b'}"
    assert inherited == "inherited []"


def test_the_flag_beats_the_environment_even_after_it_was_hidden(tmp_path: Path) -> None:
    done = worker(tmp_path, "--worker-token", "wt_flag", SIMPLETUNER_WORKER_TOKEN="wt_env")
    assert "token wt_flag flag --worker-token" in done.stdout


def test_a_token_of_the_environment_is_not_left_to_children(tmp_path: Path) -> None:
    done = worker(tmp_path, SIMPLETUNER_WORKER_TOKEN=" wt_env\n")
    assert "token wt_env environment SIMPLETUNER_WORKER_TOKEN" in done.stdout
    assert "inherited []" in done.stdout
    assert "whitespace around the token was taken off" in done.stderr


def test_the_token_file_may_be_standard_input(tmp_path: Path) -> None:
    script = tmp_path / "simpletuner"
    script.write_text(PROGRAM)
    done = subprocess.run(
        [
            sys.executable,
            str(script),
            "worker",
            "--orchestrator-url",
            "http://h:1",
            "--worker-token-file",
            "-",
        ],
        input="wt_stdin\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "token wt_stdin" in done.stdout


def test_two_tokens_of_the_same_rank_are_refused_and_a_flag_beats_the_environment(tmp_path: Path) -> None:
    done = worker(tmp_path, "--worker-token", "wt_flag", "--worker-token-file", "/x")
    assert done.returncode == 2
    assert "two worker tokens" in done.stderr
    assert "wt_flag" not in done.stderr
    done = worker(tmp_path, "--worker-token", "wt_flag", SIMPLETUNER_WORKER_TOKEN_FILE="/x")
    assert "token wt_flag" in done.stdout


def test_what_is_left_of_the_arguments() -> None:
    assert without_token(["worker", "--worker-token", "a", "-v"]) == (["worker", "-v"], "a")
    assert without_token(["worker", "--worker-token=a", "--worker-token", "b"]) == (["worker"], "b")
    assert without_token(["worker", "--worker-token"]) == (["worker", "--worker-token"], None)
    assert without_token(["worker", "--worker-token-file", "f"]) == (
        ["worker", "--worker-token-file", "f"],
        None,
    )
    assert without_token(["worker", "--", "--worker-token", "a"]) == (
        ["worker", "--", "--worker-token", "a"],
        None,
    )
