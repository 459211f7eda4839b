"""The steps of provisioning at which the server is killed: a word for what is done, and one for where in it."""

STATES = ("wanted", "asked", "booting", "joined", "destroying", "gone")
"""Of a machine: `before` dies in the transaction that writes it, `after` once it is committed."""
LOOKS = ("offers", "machines")
CHANGES = ("create", "destroy")
BRINGING = (*LOOKS, "create", "token", "wanted", "asked", "booting")
"""What comes before a machine joins."""


def around(*what: str) -> tuple[str, ...]:
    return tuple(f"{one} {when}" for one in what for when in ("before", "after"))


EVERYWHERE = around(*LOOKS, *STATES, *CHANGES)
CALLS = around(*CHANGES)
BY_COMMAND = ("create sent", "destroy sent")
"""The command has all that it needs, and nobody will hear what it says."""
BY_HTTP = ("create heard", "create done", "destroy heard", "destroy done")
"""The provider has heard it and does nothing; or has done it, and nobody hears its answer."""
