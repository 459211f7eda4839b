import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.ports import Tx
from simpletuner_fleet.store.failures import StoreBusy, StoreRefused
from simpletuner_fleet.store.postgres import PostgresStore, translated_for_psycopg
from simpletuner_fleet.store.postgres_connection import LOCK_SPACE
from tests.store.observing import Recorder
from tests.store.samples import event

HANG_UP_ON_US = (
    b"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
    b" WHERE datname = current_database() AND application_name = 'simpletuner-fleet'"
)


NOTICES = (
    "SELECT name, source FROM pg_settings WHERE name LIKE 'tcp_keepalives_%' OR name = 'tcp_user_timeout'"
)


class Fleet:
    """A store on PostgreSQL, the time it goes by, and how often it said that a commit had failed."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.time = 0.0
        self.observer = Recorder()
        self.store = PostgresStore(url, monotonic=lambda: self.time)
        self.store.observe(self.observer)

    def hang_up(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as outsider:
            outsider.execute(HANG_UP_ON_US)


@pytest.fixture
async def fleet(postgres_database: str) -> AsyncIterator[Fleet]:
    opened = Fleet(postgres_database)
    yield opened
    await opened.store.close()


def test_named_parameters_become_those_of_psycopg() -> None:
    assert translated_for_psycopg("SELECT :a, x::int, '%' FROM t WHERE b = :b_1") == (
        b"SELECT %(a)s, x::int, '%%' FROM t WHERE b = %(b_1)s"
    )


async def test_a_second_orchestrator_is_refused_until_the_first_has_gone(postgres_database: str) -> None:
    first = PostgresStore(postgres_database)
    with pytest.raises(StoreBusy):
        PostgresStore(postgres_database)
    await first.write(lambda tx: tx.put_setting("k", "v"))
    await first.close()
    second = PostgresStore(postgres_database)
    assert await second.read(lambda view: view.setting("k")) == "v"
    await second.close()


def test_a_server_that_is_not_there_is_told_without_the_password() -> None:
    with pytest.raises(StoreRefused) as refused:
        PostgresStore("postgresql://fleet:s3cret@127.0.0.1:1/fleet")
    assert "s3cret" not in refused.value.detail


def hung_up_in(step: Callable[[Tx], object], fleet: Fleet) -> Callable[[Tx], None]:
    def cut(tx: Tx) -> None:
        step(tx)
        fleet.hang_up()

    return cut


async def test_a_connection_lost_while_committing_leaves_the_outcome_unknown_and_is_made_anew(
    fleet: Fleet,
) -> None:
    await fleet.store.write(lambda tx: tx.append_audit(1.0, [event()]))
    known_resets = len(fleet.observer.reset_in)
    with pytest.raises(StoreUnavailable, match="outcome is unknown"):
        await fleet.store.write(hung_up_in(lambda tx: tx.put_setting("k", "v"), fleet))
    assert len(fleet.observer.reset_in) == known_resets + 1
    await fleet.store.write(lambda tx: tx.append_audit(2.0, [event()]))
    head = await read_head(fleet)
    assert head == 2


async def read_head(fleet: Fleet) -> int | None:
    """The reading connection was cut as well: the first look may be refused, the second is not."""
    for _ in range(2):
        try:
            head = await fleet.store.read(lambda view: view.audit_head())
        except StoreUnavailable:
            continue
        return head.seq if head else None
    return None


async def test_a_connection_lost_in_a_step_keeps_nothing_of_it(fleet: Fleet) -> None:
    def step(tx: Tx) -> None:
        tx.put_setting("k", "v")
        fleet.hang_up()
        tx.put_setting("l", "w")

    with pytest.raises(StoreUnavailable):
        await fleet.store.write(step)
    assert await fleet.store.write(lambda tx: (tx.setting("k"), tx.setting("l"))) == (None, None)


async def test_after_a_loss_nothing_is_written_without_the_lock(fleet: Fleet) -> None:
    with pytest.raises(StoreUnavailable):
        await fleet.store.write(hung_up_in(lambda tx: tx.put_setting("k", "u"), fleet))
    with psycopg.connect(fleet.url, autocommit=True) as other:
        other.execute(b"SELECT pg_advisory_lock(%s, hashtext(current_schema()))", (LOCK_SPACE,))
        with pytest.raises(StoreUnavailable, match="Another orchestrator"):
            await fleet.store.write(lambda tx: tx.put_setting("k", "v"))
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await fleet.store.write(lambda tx: tx.put_setting("k", "v"))
    fleet.time += 1.0
    await fleet.store.write(lambda tx: tx.put_setting("k", "v"))


async def test_a_commit_that_postgres_turned_into_a_rollback_is_not_acknowledged(fleet: Fleet) -> None:
    def swallows_a_failure(tx: Tx) -> None:
        tx.put_setting("k", "v")
        with suppress(psycopg.Error):
            tx._db.run("SELECT 1 / 0", {})  # type: ignore[attr-defined]

    with pytest.raises(StoreUnavailable, match="rolled the transaction back"):
        await fleet.store.write(swallows_a_failure)
    assert await fleet.store.read(lambda view: view.setting("k")) is None


async def test_an_acknowledged_commit_has_waited_for_the_disk(fleet: Fleet) -> None:
    setting = await fleet.store.write(lambda tx: tx._db.row("SHOW synchronous_commit", {}))  # type: ignore[attr-defined]
    assert setting == ("on",)


async def test_a_look_over_a_connection_that_had_ended_is_had_over_a_new_one(fleet: Fleet) -> None:
    await fleet.store.write(lambda tx: tx.put_setting("k", "v"))
    assert await fleet.store.read(lambda view: view.setting("k")) == "v"
    fleet.hang_up()
    assert await fleet.store.read(lambda view: view.setting("k")) == "v"


async def test_a_database_that_could_only_be_read_for_a_while_is_written_to_again(fleet: Fleet) -> None:
    """After a failover the first that answers may be a standby: what it shows is old, and it takes no writes."""
    await fleet.store.write(lambda tx: tx.put_setting("k", "v"))
    name = urlsplit(fleet.url).path.removeprefix("/")
    with psycopg.connect(fleet.url, autocommit=True) as outsider:
        outsider.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on".encode())
        fleet.hang_up()
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await fleet.store.write(lambda tx: tx.put_setting("k", "w"))
            fleet.time += 10.0
        with pytest.raises(StoreUnavailable):
            await fleet.store.read(lambda view: view.setting("k"))
        outsider.execute(b"SET default_transaction_read_only = off")
        outsider.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only".encode())
    fleet.time += 10.0
    await fleet.store.write(lambda tx: tx.put_setting("k", "w"))
    assert await fleet.store.read(lambda view: view.setting("k")) == "w"


def test_a_database_without_room_for_a_second_connection_is_refused_with_a_sentence(
    postgres_database: str,
) -> None:
    parts = urlsplit(postgres_database)
    role = f"narrow_{secrets.token_hex(4)}"
    with psycopg.connect(postgres_database, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 1".encode())
        try:
            admin.execute(f"GRANT ALL ON SCHEMA public TO {role}".encode())
            with pytest.raises(StoreRefused, match="too many connections"):
                PostgresStore(urlunsplit(parts._replace(netloc=f"{role}@")))
        finally:
            admin.execute(f"DROP OWNED BY {role}".encode())
            admin.execute(f"DROP ROLE {role}".encode())


async def test_the_server_is_asked_to_notice_soon_that_nobody_is_there_any_more(fleet: Fleet) -> None:
    """After a power cut it would keep the lock for two hours, and whoever starts anew out of the database."""
    chosen = await fleet.store.write(lambda tx: tx._db.rows(NOTICES, {}))  # type: ignore[attr-defined]
    assert dict(chosen) == dict.fromkeys(dict(chosen), "session")
    assert {"tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count"} <= dict(chosen).keys()


async def test_a_connection_that_was_lost_while_nothing_was_in_memory_is_made_anew(fleet: Fleet) -> None:
    """As before the first write, or after a commit that was refused: what is in memory is loaded again then."""
    fleet.hang_up()
    with suppress(StoreUnavailable):
        await fleet.store.write(lambda tx: tx.put_setting("k", "lost"))
    fleet.time += 60
    await fleet.store.write(lambda tx: tx.put_setting("k", "kept"))
    assert await fleet.store.read(lambda view: view.setting("k")) == "kept"
