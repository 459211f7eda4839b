"""Who is heard while the database is away."""

from simpletuner_fleet.store.memory.store import MemoryStore
from tests.http.api_kit import orchestrator


async def test_a_worker_is_heard_though_the_database_takes_nothing() -> None:
    """Else everybody would count as lost when it is back."""
    store = MemoryStore()
    async with orchestrator(store=store) as running:
        agent = await running.worker()
        job = await running.submit()
        offer = await agent.take()
        for _ in range(5):
            await running.pass_time(60.0)
            store.fail_next_commits(1)
            await agent.heartbeat(offer, expect=503)
        assert (await running.job(job["job_id"]))["status"] == "running"
        await agent.heartbeat(offer)


async def test_silence_is_a_loss_all_the_same() -> None:
    store = MemoryStore()
    async with orchestrator(store=store) as running:
        agent = await running.worker()
        job = await running.submit()
        await agent.take()
        await running.pass_time(300.0)
        assert (await running.job(job["job_id"]))["status"] == "queued"
