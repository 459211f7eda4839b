import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def dev(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROOT / "dev", *arguments], capture_output=True, text=True, check=False)


def test_a_bare_call_lists_every_command_that_there_is() -> None:
    script = (ROOT / "dev").read_text(encoding="utf-8")
    dispatch = script.rpartition("case $command in")[2]
    commands = set(re.findall(r"^    ([a-z]+)\)", dispatch, flags=re.MULTILINE))
    bare = dev()
    assert bare.returncode == 0
    assert set(re.findall(r"^  ([a-z]+) ", bare.stdout, flags=re.MULTILINE)) == commands


def test_an_unknown_command_says_what_why_and_next() -> None:
    unknown = dev("dance")
    assert unknown.returncode == 1
    assert "There is no command 'dance'." in unknown.stderr
    assert "why:" in unknown.stderr
    assert "next:" in unknown.stderr


def test_the_locks_pin_with_hashes_and_name_no_host() -> None:
    for lock in ("requirements.lock", "requirements-bench.lock"):
        text = (ROOT / lock).read_text(encoding="utf-8")
        pins = re.findall(r"^[a-z0-9][^ \n]*==", text, flags=re.MULTILINE)
        assert len(pins) > 40
        assert text.count("--hash=sha256:") >= len(pins)
        assert "://" not in text
