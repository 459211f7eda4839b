"""Users and sessions."""

import pytest

from simpletuner_fleet.core.errors import NameTaken
from simpletuner_fleet.core.people.accounts import Role, Session
from simpletuner_fleet.ports import ConcurrentChange, Store, Tx
from tests.store.samples import session, user


async def test_users_are_found_by_id_and_by_name_without_case(store: Store) -> None:
    whole = user(
        2,
        name="Ünal",
        role=Role.ADMIN,
        password_hash="$argon2id$x",
        language="pt-BR",
        disabled_at=5.0,
        last_login_at=4.0,
    )

    def step(tx: Tx) -> None:
        tx.add_user(whole)
        tx.add_user(user(1))

    await store.write(step)
    assert await store.read(lambda view: view.user("u_2")) == whole
    assert await store.read(lambda view: view.user_by_name("üNAL")) == whole
    assert await store.read(lambda view: view.user("u_9")) is None
    assert await store.read(lambda view: view.user_by_name("nobody")) is None
    assert await store.read(lambda view: view.users()) == [user(1), whole]


async def test_users_are_read_page_by_page_oldest_first(store: Store) -> None:
    def step(tx: Tx) -> None:
        for number in (4, 2, 1, 3):
            tx.add_user(user(number, created_at=5.0 if number in (2, 3) else float(number)))

    await store.write(step)

    async def page(after: tuple[float, str] | None, limit: int) -> list[str]:
        return await store.read(lambda view: [one.id for one in view.users_page(after, limit)])

    assert await page(None, 9) == ["u_1", "u_4", "u_2", "u_3"]
    assert await page(None, 2) == ["u_1", "u_4"]
    assert await page((4.0, "u_4"), 1) == ["u_2"]
    assert await page((5.0, "u_2"), 9) == ["u_3"]
    assert await page((5.0, "u_3"), 9) == []


async def test_two_users_cannot_have_one_name(store: Store) -> None:
    await store.write(lambda tx: tx.add_user(user(1, name="ada")))
    with pytest.raises(NameTaken):
        await store.write(lambda tx: tx.add_user(user(2, name="ADA")))
    await store.write(lambda tx: tx.add_user(user(2, name="bob")))
    with pytest.raises(NameTaken):
        await store.write(lambda tx: tx.save_user(user(2, name="Ada")))
    with pytest.raises(ConcurrentChange):
        await store.write(lambda tx: tx.add_user(user(1, name="another")))
    with pytest.raises(ConcurrentChange):
        await store.write(lambda tx: tx.save_user(user(9)))
    await store.write(lambda tx: tx.save_user(user(1, name="Ada")))
    assert await store.read(lambda view: [each.name for each in view.users()]) == ["Ada", "bob"]


async def test_users_and_sessions_of_a_provider_are_found_by_its_own_names(store: Store) -> None:
    ada = user(1, name="ada", issuer="https://id", subject="s-1", shut_out=True)
    begun = session(1, issuer="https://id", sid="sid-1", id_token="a.b.c")

    def step(tx: Tx) -> None:
        tx.add_user(ada)
        tx.add_user(user(2))
        tx.add_session(begun)
        tx.add_session(session(2, user=2))

    await store.write(step)
    assert await store.read(lambda view: view.user_by_subject("https://id", "s-1")) == ada
    assert await store.read(lambda view: view.user_by_subject("https://id", "s-2")) is None
    assert await store.read(lambda view: view.user_by_subject("https://another", "s-1")) is None
    assert await store.read(lambda view: view.user_by_subject("", "")) is None
    assert await store.read(lambda view: view.sessions_by_sid("https://id", "sid-1")) == [begun]
    assert await store.read(lambda view: view.sessions_by_sid("https://another", "sid-1")) == []
    assert await store.read(lambda view: view.sessions_by_sid("", "")) == []


async def sessions(store: Store) -> list[str]:
    rows = await store.read(lambda view: [*view.sessions_of_user("u_1"), *view.sessions_of_user("u_2")])
    return [each.token_hash for each in rows]


async def furnish(store: Store, *made: Session) -> None:
    def step(tx: Tx) -> None:
        tx.add_user(user(1))
        tx.add_user(user(2))
        for each in made:
            tx.add_session(each)

    await store.write(step)


async def test_sessions_belong_to_a_user_and_end(store: Store) -> None:
    whole = session(2, seen_at=9.5, ip="::1")
    await furnish(store, whole, session(1), session(3, user=2))
    assert await store.read(lambda view: view.session("session-2")) == whole
    assert await store.read(lambda view: view.session("session-9")) is None
    assert await sessions(store) == ["session-1", "session-2", "session-3"]
    with pytest.raises(ConcurrentChange):
        await store.write(lambda tx: tx.add_session(session(1, user=2)))
    with pytest.raises(ConcurrentChange):
        await store.write(lambda tx: tx.add_session(session(4, user=9)))
    await store.write(lambda tx: tx.delete_session("session-1"))
    await store.write(lambda tx: tx.delete_session("session-1"))
    assert await sessions(store) == ["session-2", "session-3"]


async def test_a_renewed_session_was_seen_later_and_a_lost_one_stays_lost(store: Store) -> None:
    await furnish(store, session(1))
    await store.write(lambda tx: tx.renew_session("session-1", 8.0))
    await store.write(lambda tx: tx.renew_session("session-9", 8.0))
    assert await store.read(lambda view: view.sessions_of_user("u_1")) == [session(1, seen_at=8.0)]


async def test_old_and_unseen_sessions_are_swept(store: Store) -> None:
    await furnish(store, session(1, seen_at=50.0), session(20), session(21, seen_at=50.0))
    await store.write(lambda tx: tx.delete_sessions_before(20.0, 30.0))
    assert await sessions(store) == ["session-21"]


async def test_a_step_that_fails_leaves_users_and_sessions_as_they_were(store: Store) -> None:
    await furnish(store, session(1))

    def step(tx: Tx) -> None:
        tx.save_user(user(1, name="changed"))
        tx.delete_session("session-1")
        tx.add_session(session(2))
        raise LookupError

    with pytest.raises(LookupError):
        await store.write(step)
    assert await store.read(lambda view: view.user_by_name("User 1")) == user(1)
    assert await sessions(store) == ["session-1"]
