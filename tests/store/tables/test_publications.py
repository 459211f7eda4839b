"""Publications: one a job, and those that are due in the order in which they became so."""

from msgspec.structs import replace

from simpletuner_fleet.core.publishing import Publication, PublicationState, Publish
from simpletuner_fleet.ports import Store
from tests.store.samples import BUNDLE, job


def publication(
    job_id: str, not_before: float, state: PublicationState = PublicationState.DUE
) -> Publication:
    return Publication(
        job_id=job_id,
        publish=Publish(to="hf://someone/größe", secret="hub"),
        state=state,
        created_at=1.5,
        not_before=not_before,
        error='it said "no", größer',
    )


async def test_a_jobs_publication_is_read_as_it_was_put_and_only_due_ones_are_due(store: Store) -> None:
    rows = [
        publication("j_1", 20.0),
        publication("j_2", 10.0),
        publication("j_3", 5.0, PublicationState.PUBLISHED),
        publication("j_4", 30.0),
    ]
    for number, row in enumerate(rows, 1):
        await store.write(lambda tx, number=number: tx.add_job(job(number), BUNDLE))  # type: ignore[misc]
        await store.write(lambda tx, row=row: tx.put_publication(row))  # type: ignore[misc]
    assert await store.read(lambda view: view.publication("j_1")) == rows[0]
    assert await store.read(lambda view: view.publication("j_9")) is None
    assert await store.read(lambda view: view.due_publications(20.0, 10)) == [rows[1], rows[0]]
    assert await store.read(lambda view: view.due_publications(20.0, 1)) == [rows[1]]
    done = replace(rows[1], state=PublicationState.PUBLISHED, url="https://hub/x")
    await store.write(lambda tx: tx.put_publication(done))
    assert await store.read(lambda view: view.publication("j_2")) == done
    assert await store.read(lambda view: view.due_publications(20.0, 10)) == [rows[0]]
