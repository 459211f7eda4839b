"""What a browser brings back to the terminal beside it, and what proves whose it is."""

import msgspec
import pytest

from simpletuner_fleet.core.people.sign_in.loopback import (
    Loopback,
    LoopbackAnswer,
    answer_in,
    challenge_of,
    led_back,
    proves,
)

VERIFIER = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
CHALLENGE = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"
STATE = "s" * 43
MINE = Loopback(port=40_000, challenge=CHALLENGE, state=STATE)


def test_the_example_of_rfc_7636_fits() -> None:
    assert challenge_of(VERIFIER) == CHALLENGE
    assert proves(VERIFIER, CHALLENGE)


@pytest.mark.parametrize("wrong", ["", VERIFIER[:42], VERIFIER + "\n", "é" * 43, "a" * 129, CHALLENGE])
def test_nothing_else_proves_it(wrong: str) -> None:
    assert not proves(wrong, CHALLENGE)


def test_a_challenge_is_not_a_verifier_of_itself() -> None:
    """The method `plain` of RFC 7636 is not there."""
    assert not proves(VERIFIER, VERIFIER)


def test_the_browser_is_led_to_this_machine_and_its_answer_is_read_again() -> None:
    assert led_back(MINE, "ok_1") == f"http://127.0.0.1:40000/signed-in?code=ok_1&state={STATE}"
    for code in ("ok_1", ""):
        target = led_back(MINE, code).removeprefix("http://127.0.0.1:40000")
        assert answer_in(target, STATE) == LoopbackAnswer(code)
        assert answer_in(target, "t" * 43) is None
        assert answer_in(f"{target}&more=1", STATE) is None
        assert answer_in(f"/elsewhere{target}", STATE) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"port": 80},
        {"port": 65_536},
        {"port": "40000@evil.example"},
        {"challenge": CHALLENGE + "\n"},
        {"challenge": "short"},
        {"state": "a&code=b" * 6},
        {"redirect_uri": "https://evil.example"},
        {"code_challenge_method": "plain"},
    ],
)
def test_a_terminal_names_a_port_and_no_address(changed: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**msgspec.to_builtins(MINE), **changed}, Loopback)
