"""Decides what a log-in by a provider makes of a user: the role is what the groups say today."""

from collections.abc import Callable

from msgspec.structs import replace

from simpletuner_fleet.core.people.accounts import MAX_NAME_CHARS, User, plain_name

MOST_NAMESAKES = 1_000


def after_sign_in(user: User, role: str | None, now: float) -> User:
    """Returns the user with this role, or disabled while there is none.

    A user is enabled again once there is a role; whom an administrator disabled stays disabled.
    """
    if role is None:
        return user if user.disabled_at is not None else replace(user, disabled_at=now, shut_out=True)
    if user.shut_out:
        user = replace(user, disabled_at=None, shut_out=False)
    return replace(user, role=role)


def free_name(wanted: str, provider_id: str, is_taken: Callable[[str], bool]) -> str:
    """Returns a name that nobody has: an equal name does not make two people one."""
    plain = plain_name("".join(char for char in wanted if char.isprintable())).strip() or "user"
    endings = (
        "",
        f" ({provider_id})",
        *(f" ({provider_id} {number})" for number in range(2, MOST_NAMESAKES)),
    )
    for ending in endings:
        name = plain[: MAX_NAME_CHARS - len(ending)].strip() + ending
        if not is_taken(name):
            return name
    return f"{provider_id} {plain}"[:MAX_NAME_CHARS]
