"""Configs, API tokens, remembered answers and settings."""

import pytest

from simpletuner_fleet.ports import ConcurrentChange, ConfigVersion, IdempotentAnswer, Store, Tx
from tests.store.samples import config, token


async def add(store: Store, *configs: ConfigVersion) -> None:
    def step(tx: Tx) -> None:
        for each in configs:
            tx.add_config(each)

    await store.write(step)


async def test_the_newest_version_of_a_config_is_meant_unless_one_is_named(store: Store) -> None:
    await add(store, config("sdxl", 1, bundle=b"\x00old"), config("sdxl", 2), config("Flux", 1))
    assert await store.read(lambda view: view.config("sdxl")) == config("sdxl", 2)
    assert await store.read(lambda view: view.config("sdxl", 1)) == config("sdxl", 1, bundle=b"\x00old")
    assert await store.read(lambda view: view.config("sdxl", 3)) is None
    assert await store.read(lambda view: view.config("none")) is None
    assert await store.read(lambda view: view.configs()) == [config("Flux", 1), config("sdxl", 2)]
    versions = await store.read(lambda view: view.config_versions("sdxl"))
    assert [each.version for each in versions] == [1, 2]


async def test_a_version_of_a_config_is_written_once(store: Store) -> None:
    await add(store, config("sdxl", 1))
    with pytest.raises(ConcurrentChange):
        await add(store, config("sdxl", 1, bundle=b"other"))
    assert await store.read(lambda view: view.config("sdxl")) == config("sdxl", 1)


async def test_a_deleted_config_is_gone_and_can_be_made_anew(store: Store) -> None:
    await add(store, config("sdxl", 1), config("sdxl", 2))
    await store.write(lambda tx: tx.delete_config("sdxl", 9.0))
    assert await store.read(lambda view: view.config("sdxl")) is None
    assert await store.read(lambda view: view.config("sdxl", 1)) is None
    assert await store.read(lambda view: view.configs()) == []
    assert await store.read(lambda view: view.config_versions("sdxl")) == []
    await add(store, config("sdxl", 1, bundle=b"new"))
    assert await store.read(lambda view: view.config_versions("sdxl")) == [config("sdxl", 1, bundle=b"new")]


async def test_api_tokens_are_found_by_id_and_hash(store: Store) -> None:
    every_field = token(2, permissions=("a", "b"), expires_at=5.0, revoked_at=6.0, last_used_at=7.0)

    def step(tx: Tx) -> None:
        tx.add_api_token(every_field)
        tx.add_api_token(token(1, permissions=()))

    await store.write(step)
    assert await store.read(lambda view: view.api_token("t_2")) == every_field
    assert await store.read(lambda view: view.api_token_by_hash("hash-2")) == every_field
    assert await store.read(lambda view: view.api_token("t_9")) is None
    assert await store.read(lambda view: view.api_token_by_hash("hash-9")) is None
    assert await store.read(lambda view: view.api_tokens()) == [token(1, permissions=()), every_field]


async def test_an_api_token_is_revoked_by_saving_it(store: Store) -> None:
    await store.write(lambda tx: tx.add_api_token(token(1)))
    await store.write(lambda tx: tx.save_api_token(token(1, revoked_at=7.0)))
    assert await store.read(lambda view: view.api_token("t_1")) == token(1, revoked_at=7.0)
    with pytest.raises(ConcurrentChange):
        await store.write(lambda tx: tx.save_api_token(token(9)))


async def test_the_use_of_an_api_token_is_noted_beside_what_it_is(store: Store) -> None:
    await store.write(lambda tx: tx.add_api_token(token(1, expires_at=9.0)))
    await store.write(lambda tx: tx.note_token_use("hash-1", 8.0))
    await store.write(lambda tx: tx.note_token_use("hash-9", 8.0))
    assert await store.read(lambda view: view.api_tokens()) == [token(1, expires_at=9.0, last_used_at=8.0)]


async def test_api_tokens_are_found_by_whom_they_act_for_and_by_name(store: Store) -> None:
    def step(tx: Tx) -> None:
        tx.add_api_token(token(3, owner="u_1", name="ci"))
        tx.add_api_token(token(2, owner="u_1"))
        tx.add_api_token(token(1, owner="u_2", name="ci"))
        tx.add_api_token(token(4, name="ci"))

    await store.write(step)
    whole = [token(2, owner="u_1"), token(3, owner="u_1", name="ci")]
    assert await store.read(lambda view: view.api_tokens_of("u_1")) == whole
    assert await store.read(lambda view: view.api_tokens_of("u_1", "ci")) == whole[1:]
    assert await store.read(lambda view: view.api_tokens_of("u_1", "")) == []
    assert await store.read(lambda view: view.api_tokens_of("u_9")) == []


async def test_two_api_tokens_share_neither_id_nor_secret(store: Store) -> None:
    await store.write(lambda tx: tx.add_api_token(token(1)))
    await store.write(lambda tx: tx.add_api_token(token(2)))
    with pytest.raises(ConcurrentChange):
        await store.write(lambda tx: tx.add_api_token(token(1, token_hash="other")))
    with pytest.raises(ConcurrentChange):
        await store.write(lambda tx: tx.add_api_token(token(3, token_hash="hash-1")))
    with pytest.raises(ConcurrentChange):
        await store.write(lambda tx: tx.save_api_token(token(2, token_hash="hash-1")))


async def test_an_answer_is_remembered_per_key_and_owner(store: Store) -> None:
    answer = IdempotentAnswer(key="k", owner="t_1", request_hash="h", job_id="j_1", at=1.0)
    newer = IdempotentAnswer(key="k", owner="t_1", request_hash="i", job_id="j_2", at=2.0)
    await store.write(lambda tx: tx.remember_answer(answer))
    assert await store.read(lambda view: view.idempotent_answer("k", "t_1")) == answer
    assert await store.read(lambda view: view.idempotent_answer("k", "t_2")) is None
    await store.write(lambda tx: tx.remember_answer(newer))
    assert await store.read(lambda view: view.idempotent_answer("k", "t_1")) == newer


async def test_a_setting_holds_what_was_put_last(store: Store) -> None:
    assert await store.read(lambda view: view.setting("limit")) is None
    await store.write(lambda tx: tx.put_setting("limit", "1"))
    await store.write(lambda tx: tx.put_setting("limit", "2"))
    assert await store.read(lambda view: view.setting("limit")) == "2"


async def test_settings_are_found_by_how_their_keys_begin(store: Store) -> None:
    def step(tx: Tx) -> None:
        for key in ("secret:b", "secret:B", "secret:a%", "secret_c", "limits", "Secret:d"):
            tx.put_setting(key, f"of {key}")

    await store.write(step)
    settings = await store.read(lambda view: view.settings_with_prefix("secret:"))
    assert list(settings.items()) == [
        ("secret:B", "of secret:B"),
        ("secret:a%", "of secret:a%"),
        ("secret:b", "of secret:b"),
    ]
    assert await store.read(lambda view: view.settings_with_prefix("none:")) == {}


async def test_a_deleted_setting_is_gone_and_deleting_it_again_is_harmless(store: Store) -> None:
    await store.write(lambda tx: tx.put_setting("secret:a", "1"))
    await store.write(lambda tx: tx.delete_setting("secret:a"))
    await store.write(lambda tx: tx.delete_setting("secret:a"))
    assert await store.read(lambda view: view.setting("secret:a")) is None
    await store.write(lambda tx: tx.put_setting("secret:a", "2"))
    assert await store.read(lambda view: view.setting("secret:a")) == "2"
