"""Users and groups that a provider tells of by SCIM."""

import pytest

from simpletuner_fleet.core.errors import NameTaken
from simpletuner_fleet.core.people.scim.resources import ScimKind
from simpletuner_fleet.ports import ScimEntry, Store, Tx

USER, GROUP = ScimKind.USER, ScimKind.GROUP


def entry(number: int, kind: ScimKind = USER, name: str = "", external_id: str = "") -> ScimEntry:
    return ScimEntry(
        kind=kind, id=f"x_{number}", name=name or f"Name {number}", external_id=external_id, document="{}"
    )


async def put(store: Store, one: ScimEntry) -> None:
    await store.write(lambda tx: tx.put_scim_entry(one))


async def test_entries_are_seen_by_id_by_name_in_any_case_and_by_external_id(store: Store) -> None:
    ada, group = entry(1, name="Ünal@Example", external_id="E1"), entry(1, GROUP, name="ünal@example")
    for one in (ada, group, entry(2, external_id="E1"), entry(3)):
        await put(store, one)
    assert await store.read(lambda view: view.scim_entry(USER, "x_1")) == ada
    assert await store.read(lambda view: view.scim_entry(ScimKind.GONE, "x_1")) is None
    assert await store.read(lambda view: view.scim_entry_by_name(USER, "ünal@EXAMPLE")) == ada
    assert await store.read(lambda view: view.scim_entry_by_name(GROUP, "ÜNAL@example")) == group
    by_external = await store.read(lambda view: view.scim_entries_by_external_id(USER, "E1"))
    assert [one.id for one in by_external] == ["x_1", "x_2"]
    assert await store.read(lambda view: view.scim_entries_by_external_id(USER, "e1")) == []
    assert await store.read(lambda view: view.scim_entries_by_external_id(USER, "")) == []
    assert [one.id for one in await store.read(lambda view: view.scim_page(USER, 1, 5))] == ["x_2", "x_3"]
    assert [one.id for one in await store.read(lambda view: view.scim_page(USER, 0, 1))] == ["x_1"]
    assert await store.read(lambda view: (view.scim_count(USER), view.scim_count(GROUP))) == (3, 1)


async def test_two_of_a_kind_have_no_one_name_and_one_may_be_written_again(store: Store) -> None:
    await store.write(lambda tx: tx.put_scim_entry(entry(1, name="ada")))
    with pytest.raises(NameTaken):
        await store.write(lambda tx: tx.put_scim_entry(entry(2, name="ADA")))
    await store.write(lambda tx: tx.put_scim_entry(entry(1, name="Ada", external_id="E")))
    assert await store.read(lambda view: view.scim_entry(USER, "x_1")) == entry(
        1, name="Ada", external_id="E"
    )
    await store.write(lambda tx: tx.delete_scim_entry(USER, "x_1"))
    await store.write(lambda tx: tx.put_scim_entry(entry(2, name="ada")))
    assert await store.read(lambda view: view.scim_count(USER)) == 1


async def test_members_come_once_and_go(store: Store) -> None:
    def step(tx: Tx) -> None:
        tx.add_scim_members("g_1", ["u_2", "u_1", "u_2"])
        tx.add_scim_members("g_1", ["u_1"])
        tx.add_scim_members("g_2", ["u_1"])

    await store.write(step)
    assert await store.read(lambda view: view.scim_members("g_1")) == ["u_1", "u_2"]
    assert await store.read(lambda view: view.scim_groups_of("u_1")) == ["g_1", "g_2"]
    await store.write(lambda tx: tx.remove_scim_members("g_1", ["u_1", "nobody"]))
    assert await store.read(lambda view: (view.scim_members("g_1"), view.scim_groups_of("u_1"))) == (
        ["u_2"],
        ["g_2"],
    )


async def test_a_step_that_fails_leaves_nothing_behind(store: Store) -> None:
    def step(tx: Tx) -> None:
        tx.put_scim_entry(entry(1))
        tx.add_scim_members("g_1", ["u_1"])
        raise RuntimeError("undone")

    with pytest.raises(RuntimeError):
        await store.write(step)
    assert await store.read(lambda view: (view.scim_count(USER), view.scim_members("g_1"))) == (0, [])
