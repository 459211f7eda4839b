"""Recognizes passwords that are guessed first: common words with digits and signs, keyboard runs, repeats."""

import re

LOOKALIKES = str.maketrans("0134578@$!|+", "oleastbasilt")
WORDS = frozenset(
    [
        "password",
        "passwort",
        "passwd",
        "passphrase",
        "senha",
        "contrasena",
        "motdepasse",
        "qwerty",
        "qwertz",
        "azerty",
        "letmein",
        "welcome",
        "admin",
        "administrator",
        "root",
        "login",
        "master",
        "changeme",
        "default",
        "secret",
        "iloveyou",
        "monkey",
        "dragon",
        "football",
        "baseball",
        "basketball",
        "superman",
        "batman",
        "pokemon",
        "starwars",
        "sunshine",
        "princess",
        "shadow",
        "michael",
        "jordan",
        "jennifer",
        "charlie",
        "computer",
        "internet",
        "samsung",
        "google",
        "whatever",
        "trustno",
        "summer",
        "winter",
        "spring",
        "autumn",
        "simpletuner",
        "fleet",
        "simpletunerfleet",
        "training",
        "trainer",
        "worker",
        "server",
        "test",
        "testing",
        "tester",
        "guest",
        "user",
        "demo",
        "hello",
        "helloworld",
        "abc",
        "abcdef",
        "asdf",
        "zxcv",
    ]
)
RUNS = (
    "01234567890123456789",
    "98765432109876543210",
    "abcdefghijklmnopqrstuvwxyz",
    "zyxwvutsrqponmlkjihgfedcba",
    "qwertyuiopasdfghjklzxcvbnm",
    "qwertzuiopasdfghjklyxcvbnm",
    "azertyuiopqsdfghjklmwxcvbn",
    "1qaz2wsx3edc4rfv5tgb6yhn7ujm",
    "1q2w3e4r5t6y7u8i9o0p",
)
LEAST_OF_ITS_OWN = 5
"""So many characters must be left that no word, run or name accounts for."""
_REPEATED = re.compile(r"(.{1,6}?)\1{2,}")


def is_common(password: str, *names: str) -> bool:
    """Tells whether little is left of the password beside what every guesser tries; `names` are the user's."""
    plain = password.casefold()
    return any(
        len(_own(spelling, names)) < LEAST_OF_ITS_OWN for spelling in (plain, plain.translate(LOOKALIKES))
    )


def _own(text: str, names: tuple[str, ...]) -> str:
    """Returns what is left of the text without words, names, runs, repeats, years and signs."""
    for word in sorted(
        (*WORDS, *(name.casefold() for name in names if len(name) > 2)), key=len, reverse=True
    ):
        text = text.replace(word, " ")
    text = _REPEATED.sub(" ", text)
    return "".join(
        re.sub(r"\d+", "", part)
        for part in re.split(r"[\W_]+", text)
        if len(part) < 3 or not any(part in run for run in RUNS)
    )
