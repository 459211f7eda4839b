"""After everything has happened, each secret is where it has to be and nowhere else: files, processes, pages."""

import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.canaries import Sighting, seen_in_processes, seen_on_disk, tokens_left_in
from simpletuner_fleet.core.people import tokens
from tests.attacks.canaries.story import IN_A_MISTAKE, SecretStory, play
from tests.e2e.kit import World

FILES = {
    "admin token": r"server/admin_token",
    "other worker's token": r"worker_token",
    "secrets.key": r"server/secrets\.key",
    "audit.key": r"server/audit\.key",
}
"""The one file in which each secret may lie, for its owner alone to read."""
PRINTED = r"work-[\w-]+/attempts/.*/output\.log"
"""A job that prints what it was given: on its own machine, in its own folder, that is its own affair."""
PRINTABLE = ("HF secret", "W&B secret", "upload token 0", "upload token 1")
TRAINERS = "environment: .*-c "
ENVIRONMENTS = {
    "HF secret": TRAINERS,
    "W&B secret": TRAINERS,
    "upload token 0": TRAINERS,
    "upload token 1": TRAINERS,
    "worker's token": r"environment: \S+ \S*simpletuner(?:-fleet)? worker ",
}
"""The processes that have it in their environment on purpose: the job that asked for it, the worker that was given it."""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, SecretStory]]:
    world = World(tmp_path_factory.mktemp("canaries"))
    world.warm = False
    try:
        story = play(world)
        yield world, story
    finally:
        world.close()


def listed(sightings: set[Sighting]) -> list[str]:
    return sorted(f"{one.secret}: {one.place}{' (private)' if one.private else ''}" for one in sightings)


def test_every_canary_was_really_there(played: tuple[World, SecretStory]) -> None:
    _, story = played
    assert len(story.canaries) == 14
    assert len(set(story.canaries.values())) == 14
    assert len(story.answers) > 50
    assert {one.secret for one in story.in_processes} >= set(PRINTABLE)


def test_no_file_holds_a_secret_but_the_private_one_made_for_it(played: tuple[World, SecretStory]) -> None:
    world, story = played
    canaries = {**story.canaries, "in a mistake": IN_A_MISTAKE}

    def expected(one: Sighting) -> bool:
        if one.secret in FILES and re.fullmatch(FILES[one.secret], one.place):
            return one.private
        return one.secret in PRINTABLE and re.fullmatch(PRINTED, one.place) is not None

    sightings = seen_on_disk(world.folder, canaries)
    assert listed({one for one in sightings if not expected(one)}) == []
    assert {one.secret for one in sightings} >= set(FILES)


def test_no_process_shows_a_secret_that_is_not_its_own(played: tuple[World, SecretStory]) -> None:
    _, story = played
    sightings = story.in_processes | seen_in_processes({**story.canaries, "in a mistake": IN_A_MISTAKE})
    unexpected = {
        one for one in sightings if not re.match(ENVIRONMENTS.get(one.secret, "never"), one.place, re.DOTALL)
    }
    assert listed(unexpected) == []


def test_no_page_answer_or_command_shows_a_secret(played: tuple[World, SecretStory]) -> None:
    _, story = played
    assert listed(story.seen_in_answers()) == []


def test_a_secret_in_any_spelling_is_seen(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("authorization: Basic aGZfY2FuYXJ5MDEyMzQ1Njc4OWFiY2RlZg==")
    (tmp_path / "dump").write_text("68665f63616e617279303132333435363738396162636465663a")
    places = {one.place for one in seen_on_disk(tmp_path, {"hf": "hf_canary0123456789abcdef"})}
    assert places == {"log", "dump"}


def test_a_process_that_becomes_another_is_named_by_what_its_environment_belongs_to(tmp_path: Path) -> None:
    process = tmp_path / "1234567890"
    process.mkdir()
    for name in ("cmdline", "environ"):
        os.mkfifo(process / name)

    def become_another() -> None:
        """Each file is opened for writing once it is opened for reading."""
        for name, content in (
            ("cmdline", b""),
            *2 * (("environ", b"KEY=canary0123"), ("cmdline", b"trainer\0")),
        ):
            (process / name).write_bytes(content)

    threading.Thread(target=become_another, daemon=True).start()
    assert seen_in_processes({"key": "canary0123"}, tmp_path) == {Sighting("key", "environment: trainer ")}


def test_tokens_are_known_by_their_form_wherever_they_lie(tmp_path: Path) -> None:
    token = tokens.make("wt", b"x" * 32)
    (tmp_path / "log").write_text(f"joined with {token}.")
    (tmp_path / "worker_token").write_text(token)
    (tmp_path / "worker_token").chmod(0o600)
    (tmp_path / "mistyped").write_text(token[:-1] + ("a" if token[-1] != "a" else "b"))
    assert [(one.secret, one.place) for one in tokens_left_in(tmp_path)] == [("wt", "log")]
    (tmp_path / "worker_token").chmod(0o644)
    assert len(tokens_left_in(tmp_path)) == 2
