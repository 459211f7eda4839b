"""Keeps the lists of jobs that people have named."""

from simpletuner_fleet.core.errors import Invalid, NotFound
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.ports import SavedView

MOST_VIEWS = 50
MAX_NAME_CHARS = 60


async def saved_views(fleet: Fleet, owner: str) -> list[SavedView]:
    return await fleet.read(lambda view: view.saved_views(owner))


async def save(fleet: Fleet, owner: str, name: str, query: str) -> SavedView:
    name = name.strip()
    if not (1 <= len(name) <= MAX_NAME_CHARS and name.isprintable()):
        raise Invalid(f"The name of a view has 1 to {MAX_NAME_CHARS} printable characters.", path="$.name")

    def step(transaction: Transaction) -> SavedView:
        others = [one for one in transaction.tx.saved_views(owner) if one.name != name]
        if len(others) >= MOST_VIEWS:
            raise Invalid(f"You can keep at most {MOST_VIEWS} views; delete one first.", path="$.name")
        view = SavedView(owner=owner, name=name, query=query, created_at=transaction.now)
        transaction.tx.put_saved_view(view)
        return view

    return await fleet.act(step)


async def delete(fleet: Fleet, owner: str, name: str) -> None:
    def step(transaction: Transaction) -> None:
        if all(one.name != name for one in transaction.tx.saved_views(owner)):
            raise NotFound(f"You have no view '{name}'.")
        transaction.tx.delete_saved_view(owner, name)

    await fleet.act(step)
