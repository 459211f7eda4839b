"""Ctrl-C while a command is still being loaded, or has done its work: a real program, interrupted as it imports."""

import itertools
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from simpletuner_fleet.cli.frame.errors import ExitCode

PROGRAM = textwrap.dedent("""
    import os, signal, sys
    import simpletuner_fleet.cli
    for name in [name for name in sys.modules if name in ("signal", "enum", "types", "functools")]:
        del sys.modules[name]  # as in a program that has just begun

    class Watch:
        seen = 0
        def find_spec(self, name, path=None, target=None):
            Watch.seen += 1
            if Watch.seen == nth:
                os.kill(os.getpid(), signal.SIGINT)

    nth = int(sys.argv.pop(1))
    sys.meta_path.insert(0, Watch())
    from simpletuner_fleet.cli.{module} import main
    code = main()
    print(Watch.seen, file=sys.stderr)
    sys.exit(code)
    """)
FIRST_OF_OTHERS = 3
"""Before it come the module that starts the command and the one that answers Ctrl-C; nobody can, until they are there."""
WORDS = ("jobs", "list", "--url", "http://127.0.0.1:9")
NEVER, PARTS = 10**6, 12


def outcome(module: str, nth: int) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(module=module), str(nth), *WORDS],
        env={**os.environ, "SIMPLETUNER_API_TOKEN": "st_x"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("module", ["front", "main"])
def test_ctrl_c_while_a_command_is_loaded_ends_with_130_and_no_stack_trace(module: str) -> None:
    undisturbed = outcome(module, NEVER)
    assert undisturbed.returncode == ExitCode.UNREACHABLE
    imports = int(undisturbed.stderr.splitlines()[-1])
    assert imports > 100
    later = range(FIRST_OF_OTHERS + 9, imports, imports // PARTS)
    for nth in itertools.chain(range(FIRST_OF_OTHERS, FIRST_OF_OTHERS + 9), later):
        done = outcome(module, nth)
        assert (done.returncode, done.stdout, done.stderr) == (ExitCode.INTERRUPTED, "", ""), nth


def test_a_command_in_the_background_of_a_shell_is_not_ended_by_ctrl_c() -> None:
    """Such a shell has all that it starts there ignore the signal."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert outcome("front", 50).returncode == ExitCode.UNREACHABLE
    finally:
        signal.signal(signal.SIGINT, before)
