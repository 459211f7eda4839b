import psycopg


def test_each_test_gets_an_empty_database_of_its_own(postgres_database: str) -> None:
    with psycopg.connect(postgres_database) as connection:
        tables = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()
        connection.execute("CREATE TABLE left_behind (id integer)")
    assert tables == (0,)


def test_what_an_earlier_test_left_behind_is_not_seen(postgres_database: str) -> None:
    with psycopg.connect(postgres_database) as connection:
        row = connection.execute("SELECT to_regclass('left_behind')").fetchone()
    assert row == (None,)


def test_a_database_is_dropped_even_while_somebody_is_connected(
    postgres_url: str, postgres_database: str
) -> None:
    lingering = psycopg.connect(postgres_database)
    lingering.execute("SELECT 1")
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"DROP DATABASE {lingering.info.dbname} WITH (FORCE)".encode())
        admin.execute(f"CREATE DATABASE {lingering.info.dbname}".encode())
    lingering.close()
