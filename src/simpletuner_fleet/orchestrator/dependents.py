"""Tells jobs that what they depend on has ended, where these are more than one transaction tells.

The transaction of an end tells the first of them, so that mostly nothing is left for here. Who is left follows from the
rows: a blocked job that names one that has ended. Until it is told, it waits and says so, however often the orchestrator
is started again meanwhile.
"""

from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction


async def tell_dependents_once(fleet: Fleet) -> bool:
    """Tells as many as one transaction may tell; returns whether some are left.

    As any act it also places some of those whom acts before it have left to place.
    """
    return await fleet.act(Transaction.tell_of_earlier_ends)
