"""The command's manners: help, guesses, interruptions, pipes, start-up."""

import argparse
import fcntl
import os
import pty
import re
import resource
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from simpletuner_fleet.cli.commands import build_parser
from simpletuner_fleet.cli.dispatch import _command
from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.cli.frame.unforeseen import unforeseen
from tests.cli.conftest import Answer, FakeServer, Run

COMMAND = [sys.executable, "-m", "simpletuner_fleet.cli.main"]
SEED_OPTIONS = """\
OPTIONS:
  --orchestrator-url URL   Orchestrator panel URL (or SIMPLETUNER_ORCHESTRATOR_URL)
  --worker-token TOKEN     Authentication token (or SIMPLETUNER_WORKER_TOKEN)
  --name NAME              Worker name (default: hostname)
  --persistent             Stay online between jobs (default: ephemeral)
  -v, --verbose            Enable debug logging
"""


def test_the_workers_help_shows_the_documented_options_verbatim(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    with pytest.raises(SystemExit) as done:
        build_parser().parse_args(["worker", "--help"])
    assert done.value.code == 0
    shown = capsys.readouterr().out
    assert "simpletuner worker [OPTIONS]" in shown
    assert SEED_OPTIONS in shown


@pytest.mark.parametrize("columns", [80, 60])
def test_no_commands_help_is_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    too_wide = [
        (parser.prog, line)
        for parser in every_parser(build_parser())
        for line in parser.format_help().splitlines()
        if len(line) > columns
    ]
    assert too_wide == []


def every_parser(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from every_parser(below)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["jobs", "get"], "ID deve ser informado"),
        (["jobs", "list", "--status"], "falta um valor"),
    ],
)
def test_what_the_parser_says_is_in_the_readers_language(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.setenv("SIMPLETUNER_LANG", "pt-BR")
    assert said in run(*words).err


def test_a_choice_that_is_none_is_told_with_its_option_and_all_there_are(run: Run) -> None:
    result = run("jobs", "submit", "x", "--target", "moon")
    assert result.code == ExitCode.USAGE
    assert "--target cannot be 'moon'" in result.err
    assert "expected one of worker, local, auto, cloud" in result.err
    assert "--since" in run("jobs", "logs", "j_1", "--since", "yesterday").err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OSError(28, "No space left on device", "/full"), "E_MACHINE", "/full: No space left on device"),
        (RuntimeError("odd"), "E_UNFORESEEN", "RuntimeError: odd"),
        (ModuleNotFoundError("x", name="psycopg.errors"), "E_LIGHT_INSTALL", "psycopg"),
    ],
)
def test_an_error_that_nobody_has_foreseen_is_told_without_a_stack_trace(
    capsys: pytest.CaptureFixture[str], error: Exception, code: str, said: str
) -> None:
    trouble = unforeseen(error, {})
    assert (trouble.code, capsys.readouterr().err) == (code, "")
    assert said in trouble.why
    unforeseen(error, {"SIMPLETUNER_VERBOSE": "1"})
    assert type(error).__name__ in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["jbos"], "jobs"),
        (["wrokers"], "workers"),
        (["jobs", "lst"], "list"),
        (["jobs", "submitt", "x"], "submit"),
        (["workers", "drian", "x"], "drain"),
        (["jobs", "list", "--stats", "queued"], "--status"),
        (["worker", "--orchestrator-ulr", "x"], "--orchestrator-url"),
        (["server", "--prot", "1"], "--port"),
        (["jobs", "submit", "x", "--target", "wroker"], "worker"),
    ],
)
def test_a_slip_of_the_finger_gets_a_guess(run: Run, typed: list[str], meant: str) -> None:
    result = run(*typed)
    assert result.code == ExitCode.USAGE
    assert f"did you mean '{meant}'?" in result.err
    assert result.out == ""


def test_worker_list_is_told_apart_from_workers_list(run: Run) -> None:
    result = run("worker", "list")
    assert result.code == ExitCode.USAGE
    assert "`worker` starts an agent on this machine. Did you mean `simpletuner workers list`?" in result.err


def test_options_are_never_guessed_from_their_beginning(run: Run) -> None:
    """An abbreviation would carry a token past the code that hides it."""
    assert run("worker", "--worker-tok", "wt_x").code == ExitCode.USAGE


def test_a_missing_argument_is_a_usage_error_in_four_parts(run: Run) -> None:
    result = run("jobs", "get")
    assert result.code == ExitCode.USAGE
    for part in ("error: ", "  why:  ", "  next: ", "  code: E_USAGE   exit: 2"):
        assert part in result.err


def test_a_bare_call_lists_the_commands(run: Run) -> None:
    result = run()
    assert result.code == ExitCode.OK
    for name in ("server", "worker", "jobs", "workers", "configs", "audit", "status", "doctor", "login"):
        assert f"    {name} " in result.out


def test_a_noun_alone_shows_its_verbs(run: Run) -> None:
    result = run("jobs")
    assert result.code == ExitCode.USAGE
    assert "set-priority" in result.err


def test_every_command_has_help_and_a_function_behind_it(capsys: pytest.CaptureFixture[str]) -> None:
    parser = build_parser()
    for words, run_path in leaves():
        with pytest.raises(SystemExit) as done:
            parser.parse_args([*words, "--help"])
        assert done.value.code == 0
        assert callable(_command(run_path)), words
    assert capsys.readouterr().err == ""


def leaves() -> list[tuple[list[str], str]]:
    commands = []

    def walk(parser: object, words: list[str]) -> None:
        groups = parser._subparsers  # type: ignore[attr-defined]
        if groups is None:
            commands.append((words, parser.get_default("run")))  # type: ignore[attr-defined]
            return
        for name, child in groups._group_actions[0].choices.items():
            walk(child, [*words, name])

    walk(build_parser(), [])
    return commands


def test_the_tree_is_the_documented_one() -> None:
    commands = {" ".join(words) for words, _ in leaves()}
    for noun, verbs in {
        "jobs": "submit list get watch explain wait logs cancel retry set-priority",
        "workers": "list get create drain resume rotate-token set-labels delete",
        "configs": "list get import export validate delete",
        "audit": "list verify",
        "tokens": "list create revoke",
    }.items():
        for verb in verbs.split():
            assert f"{noun} {verb}" in commands
    for command in [
        "server",
        "worker",
        "status",
        "doctor",
        "login",
        "logout",
        "whoami",
        "version",
        "completion",
    ]:
        assert command in commands


def test_version_costs_little() -> None:
    """By Python's own start in the same minute (8 to 10 times it was measured): a slow machine stretches both."""
    pairs = [(_cost_s([*COMMAND, "version"]), _cost_s([sys.executable, "-c", "pass"])) for _ in range(8)]
    command, bare = (min(costs) for costs in zip(*pairs, strict=True))
    assert command < 14 * bare


def _cost_s(command: list[str]) -> float:
    """Returns the processor time, which a busy machine stretches less than the clock's."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_a_simple_command_imports_nothing_heavy() -> None:
    code = (
        "import sys; from simpletuner_fleet.cli.main import main; main(['version']); "
        "print([m for m in ('rich','httpx2','msgspec','asyncio','uvicorn','shtab','torch') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert shown.splitlines()[-1] == "[]"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_written(run: Run, shell: str) -> None:
    result = run("completion", shell)
    assert result.code == ExitCode.OK
    for word in ("rotate-token", "submit", "orchestrator-url"):
        assert word in result.out


def test_the_bash_completion_parses_and_completes(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "simpletuner.bash"
    script.write_text(run("completion", "bash").out)
    subprocess.run(["bash", "-n", str(script)], check=True)
    ask = (
        f"source {script}; COMP_WORDS=(simpletuner workers ro); COMP_CWORD=2; "
        "_shtab_simpletuner simpletuner ro workers; echo ${COMPREPLY[@]}"
    )
    shown = subprocess.run(["bash", "-c", ask], check=True, capture_output=True, text=True).stdout
    assert shown.strip() == "rotate-token"


def until_asleep(pid: int) -> None:
    """Returns when the process has been found waiting several times in a row."""
    looks = 0
    deadline = time.monotonic() + 20
    while looks < 5:
        assert time.monotonic() < deadline
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        looks = looks + 1 if state == "S" else 0
        time.sleep(0.01)


def test_ctrl_c_ends_with_130_and_no_stack_trace(server: FakeServer, home: Path) -> None:
    asked, release = threading.Event(), threading.Event()

    def hang(_: object) -> dict[str, object]:
        asked.set()
        release.wait(20)
        return {"jobs": [], "next": None}

    server.on("GET", "/api/jobs", hang)
    process = subprocess.Popen(
        [*COMMAND, "jobs", "list", "--url", server.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert asked.wait(20)
    # A signal in the instant before it waits for the answer would be seen only after that, as with any Python program.
    until_asleep(process.pid)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    release.set()
    assert process.returncode == 130
    assert "Traceback" not in err
    assert out == ""


def test_a_reader_that_goes_away_is_no_drama(server: FakeServer, home: Path) -> None:
    jobs = [{"id": f"j_{n:06}", "status": "queued", "config_name": "c" * 200} for n in range(3000)]
    server.on("GET", "/api/jobs", {"jobs": jobs, "next": None})
    command = f"{' '.join(COMMAND)} jobs list --limit 3000 --url {server.url} | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("ID\t")
    assert done.stderr == ""


BEFORE_A_GONE_READER = """
import sys, os
from simpletuner_fleet.cli.main import main
reader, writer = os.pipe()
os.close(reader)
for stream in sys.argv[1].split(","):
    os.dup2(writer, int(stream))
sys.exit(main(sys.argv[2:]))
"""


def code_for_nobody(streams: str, *words: str) -> tuple[int, str]:
    """Returns the exit code, and what is said on a stream that somebody still reads."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-c", BEFORE_A_GONE_READER, streams, *words],
        env={**environment, "SIMPLETUNER_API_TOKEN": "st_x"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


def test_a_failure_stays_one_where_nobody_reads_the_output(server: FakeServer, home: Path) -> None:
    server.on("POST", "/api/pools/p/check", {"ok": False, "trouble": "the key is refused"})
    assert code_for_nobody("1", "pools", "check", "p", "--url", server.url) == (ExitCode.FAILED, "")


def test_an_error_keeps_its_code_where_nobody_reads_it(server: FakeServer, home: Path) -> None:
    server.on("GET", "/api/jobs", {"jobs": [], "next": None})
    code, said = code_for_nobody("1,2", "jobs", "get", "j_9", "--url", server.url)
    assert (code, said) == (ExitCode.NOT_FOUND, "")


def test_output_that_fits_one_page_is_a_success_where_nobody_reads_it(server: FakeServer, home: Path) -> None:
    server.on("GET", "/api/jobs", {"jobs": [{"id": "j_1", "status": "queued"}], "next": None})
    assert code_for_nobody("1", "jobs", "list", "--url", server.url) == (ExitCode.OK, "")


def test_a_command_that_its_reader_leaves_ends_as_shells_expect(server: FakeServer, home: Path) -> None:
    jobs = [{"id": f"j_{n:06}", "status": "queued", "config_name": "c" * 200} for n in range(300)]
    server.on("GET", "/api/jobs", {"jobs": jobs, "next": None})
    assert code_for_nobody("1", "jobs", "list", "--limit", "300", "--url", server.url) == (141, "")


def test_a_command_that_nobody_hears_has_done_what_it_did(server: FakeServer, home: Path) -> None:
    server.on("POST", "/api/pools/take-in-hand", {})
    assert code_for_nobody("1,2", "pools", "take-in-hand", "--url", server.url) == (ExitCode.OK, "")


def test_a_caller_that_closed_its_output_is_no_drama(server: FakeServer, home: Path) -> None:
    server.on("GET", "/api/jobs", {"jobs": [], "next": None})
    words = [*COMMAND, "jobs", "list", "--url", server.url]
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *words],
        env={**os.environ, "SIMPLETUNER_API_TOKEN": "st_x"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_narrow_encoding_prints_numbers_instead_of_failing(server: FakeServer, home: Path) -> None:
    server.on("GET", "/api/jobs", {"jobs": [{"id": "j_1", "status": "queued", "name": "訓練"}], "next": None})
    done = subprocess.run(
        [*COMMAND, "jobs", "list", "--url", server.url],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=True,
    )
    assert b"\\u8a13" in done.stdout


def on_a_terminal(command: list[str], columns: int = 80) -> str:
    """What the command draws on a real terminal of this width."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        command, stdin=child, stdout=child, stderr=child, env={**environment, "TERM": "xterm-256color"}
    )
    os.close(child)
    shown = b""
    while True:
        try:
            chunk = os.read(parent, 65536)
        except OSError:
            break
        if not chunk:
            break
        shown += chunk
    process.wait(20)
    os.close(parent)
    return shown.decode()


def test_on_a_terminal_lists_are_tables_that_fit_and_carry_no_foreign_controls(
    server: FakeServer, home: Path
) -> None:
    evil = "\x1b]0;owned\x07\x1b[2Jname"
    job = {
        "id": "j_abcdefgh",
        "status": "queued",
        "name": evil,
        "explain": {"code": "ALL_MATCHING_BUSY", "sentence": "all matching workers are busy " * 4},
    }
    server.on("GET", "/api/jobs", {"jobs": [job], "next": None})
    shown = on_a_terminal([*COMMAND, "jobs", "list", "--url", server.url])
    assert "\x1b]0;" not in shown
    assert "\x1b[2J" not in shown
    assert "\\x1b]0;owned" in shown
    assert "j_abcdefgh" in shown
    assert "jobs explain j_abcdefgh" in shown
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert all(len(line) <= 80 for line in plain.splitlines())


def test_no_color_means_no_colour(server: FakeServer, home: Path) -> None:
    server.on("GET", "/api/jobs", {"jobs": [{"id": "j_1", "status": "running"}], "next": None})
    command = [*COMMAND, "jobs", "list", "--url", server.url]
    assert "\x1b[36m" in on_a_terminal(command)
    assert "\x1b[3" not in on_a_terminal([*command, "--no-color"])


def test_the_colours_of_a_trainer_are_left_out_where_none_are_wanted(server: FakeServer, home: Path) -> None:
    server.on("GET", "/api/jobs/j_1", {"id": "j_1", "status": "completed"})
    server.on("GET", "/api/jobs/j_1/logs", Answer(200, b"\x1b[31mloss\x1b[0m 0.5\n"))
    command = [*COMMAND, "jobs", "logs", "j_1", "--url", server.url]
    assert "\x1b[31mloss" in on_a_terminal(command)
    assert on_a_terminal([*command, "--no-color"]) == "loss 0.5\r\n"
