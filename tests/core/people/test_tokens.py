import hashlib
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpletuner_fleet.core.people import tokens

KNOWN = tokens.make(tokens.WORKER, bytes(range(32)))
secrets = st.binary(min_size=32, max_size=32)


def test_a_known_token_keeps_its_form() -> None:
    assert KNOWN == "wt_003aUlTJC7tjlCTQj2uNU3MFagCXG9LRKRcwGkBIDlf0XCc6i"


@settings(max_examples=100)
@given(secrets, st.sampled_from([tokens.WORKER, tokens.API, tokens.UPLOAD]))
def test_every_secret_makes_a_token_of_one_form(random: bytes, prefix: str) -> None:
    token = tokens.make(prefix, random)
    head, _, tail = token.partition("_")
    assert head == prefix
    assert len(tail) == tokens.SECRET_CHARS + tokens.CHECKSUM_CHARS
    assert set(tail) <= set(string.ascii_letters + string.digits)
    assert tokens.complaint(token, prefix) is None


@settings(max_examples=100)
@given(secrets, secrets)
def test_different_secrets_make_different_tokens(a: bytes, b: bytes) -> None:
    assert (tokens.make("wt", a) == tokens.make("wt", b)) is (a == b)


def test_the_largest_secret_fits_its_width() -> None:
    assert 62**tokens.SECRET_CHARS >= 2 ** (8 * tokens.SECRET_BYTES)
    assert 62**tokens.CHECKSUM_CHARS >= 2**32
    assert tokens.complaint(tokens.make("wt", b"\xff" * 32), "wt") is None


@pytest.mark.parametrize(
    ("number", "width", "text"),
    [
        (0, 1, "0"),
        (0, 6, "000000"),
        (61, 1, "z"),
        (62, 2, "10"),
        (62**3 - 1, 3, "zzz"),
        (10, 2, "0A"),
        (62**42 + 62**10 - 1, 43, "1" + "0" * 32 + "z" * 10),
    ],
)
def test_base62_has_a_fixed_width(number: int, width: int, text: str) -> None:
    assert tokens.base62(number, width) == text


@pytest.mark.parametrize("length", [0, 16, 31, 33])
def test_a_token_is_never_made_of_less_or_more_chance_than_promised(length: int) -> None:
    with pytest.raises(ValueError, match="32 random bytes"):
        tokens.make("wt", bytes(length))


def test_every_single_typo_is_found() -> None:
    for at in range(len(KNOWN)):
        for char in tokens.BASE62 + "_-é":
            typo = KNOWN[:at] + char + KNOWN[at + 1 :]
            assert (tokens.complaint(typo, "wt") is None) is (typo == KNOWN)


def test_every_swap_of_neighbours_is_found() -> None:
    for at in range(len(KNOWN) - 1):
        swapped = KNOWN[:at] + KNOWN[at + 1] + KNOWN[at] + KNOWN[at + 2 :]
        assert (tokens.complaint(swapped, "wt") is None) is (swapped == KNOWN)


def test_every_lost_or_doubled_character_is_found() -> None:
    for at in range(len(KNOWN)):
        assert tokens.complaint(KNOWN[:at] + KNOWN[at + 1 :], "wt") is not None
        assert tokens.complaint(KNOWN[:at] + KNOWN[at] + KNOWN[at:], "wt") is not None


@pytest.mark.parametrize("blank", [" ", "\n", "\t", "\r\n", "\u00a0", "\u2003"])
@pytest.mark.parametrize("at", [0, 2, 20, len(KNOWN)])
def test_whitespace_is_named_as_such(blank: str, at: int) -> None:
    assert "whitespace" in (tokens.complaint(KNOWN[:at] + blank + KNOWN[at:], "wt") or "")


def test_a_token_of_another_kind_is_named_as_such() -> None:
    assert "begins with 'st_'" in (tokens.complaint(KNOWN, "st") or "")
    assert "begins with 'wt_'" in (tokens.complaint("", "wt") or "")


@settings(max_examples=100)
@given(st.text(alphabet=st.characters()))
def test_any_text_at_all_gets_an_answer(text: str) -> None:
    assert tokens.complaint(text, "wt")
    assert tokens.complaint("wt_" + text, "wt")


def test_bytes_of_a_shell_that_are_no_text_get_an_answer() -> None:
    assert "mistyped" in (tokens.complaint("wt_" + "\udcff" * 49, "wt") or "")


def test_only_the_hash_is_stored() -> None:
    assert tokens.hashed(KNOWN) == hashlib.sha256(KNOWN.encode()).hexdigest()
    assert KNOWN not in tokens.hashed(KNOWN)
