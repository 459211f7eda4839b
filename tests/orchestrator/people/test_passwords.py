"""Passwords: costly to guess, bounded in what they cost the server."""

import asyncio

from simpletuner_fleet.core.errors import TooManyRequests
from simpletuner_fleet.orchestrator.people import passwords as module
from simpletuner_fleet.orchestrator.people.passwords import Cost, Passwords

CHEAP = Cost(memory_kib=64)


async def test_a_password_fits_its_own_hash_alone() -> None:
    passwords = Passwords(CHEAP)
    known = await passwords.hashed("correct horse")
    assert known != await passwords.hashed("correct horse")
    assert await passwords.fits("correct horse", known)
    assert not await passwords.fits("correct horsf", known)
    assert not await passwords.fits("correct horse", "")
    assert not await passwords.fits("x" * 5000, known)


async def test_new_passwords_cost_what_is_recommended_and_old_ones_are_told() -> None:
    known = await Passwords().hashed("correct horse")
    assert known.startswith("$argon2id$v=19$m=47104,t=1,p=1$")
    assert not Passwords().outdated(known)
    assert Passwords(CHEAP).outdated(known)


async def test_a_flood_of_log_ins_is_turned_away() -> None:
    passwords = Passwords(CHEAP)
    many = [passwords.hashed("correct horse") for _ in range(module.MAX_WAITING + 5)]
    answers = await asyncio.gather(*many, return_exceptions=True)
    assert sum(isinstance(answer, TooManyRequests) for answer in answers) == 5
    assert await passwords.hashed("correct horse")


async def test_a_password_is_known_again_after_the_cost_has_risen() -> None:
    known = await Passwords(CHEAP).hashed("correct horse")
    assert await Passwords(Cost(memory_kib=128)).fits("correct horse", known)


async def test_a_hash_that_cannot_be_read_fits_nothing() -> None:
    assert not await Passwords(CHEAP).fits("correct horse", "not a hash")
