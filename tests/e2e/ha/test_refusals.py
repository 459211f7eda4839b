"""What does not belong together is refused at the start, with a sentence that says what to do."""

from tests.e2e.ha.several import Several


def test_a_server_with_another_key_does_not_start(several: Several) -> None:
    several.add().start()
    stranger = several.add(with_key=False)
    program = stranger.launch()
    assert program.wait() != 0
    assert "sealed with another key" in program.text
    assert "secrets.key" in program.text
    assert several.all[0].role == "leader"


def test_a_server_with_another_storage_does_not_start(several: Several) -> None:
    several.add().start()
    other = several.add()
    program = other.launch(SIMPLETUNER_STORAGE_URL=f"file://{several.world.folder}/elsewhere")
    assert program.wait() != 0
    assert "keeps its files in a different storage" in program.text
    assert "SIMPLETUNER_STORAGE_URL" in program.text


def test_servers_share_their_admin_token_and_authority_through_the_database(several: Several) -> None:
    first, second = several.add(), several.add(with_key=False)
    first.launch("--ssl")
    first.url = first.url.replace("http:", "https:")
    several.world.use_tls()
    first.await_ready()
    several.give_key(second)
    second.launch("--ssl")
    second.url = second.url.replace("http:", "https:")
    second.await_ready()
    for file in ("admin_token", "secret", "audit.key", "tls/ca.pem", "tls/ca-key.pem"):
        assert (first.home / file).read_bytes() == (second.home / file).read_bytes(), file
    assert second.call("GET", "/api/jobs").is_success
    assert second.role == "follower"
