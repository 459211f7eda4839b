"""What the page of an ended job offers first, and where it says that its model is."""

from simpletuner_fleet.core.publishing import Publication, PublicationState, Publish
from simpletuner_fleet.web.routes import ROUTES
from tests.http.api_kit import Running, orchestrator
from tests.http.upload_kit import Uploader, uploading


async def page_of(running: Running, up: Uploader) -> str:
    answer = await running.http.get(f"/jobs/{up.offer['job_id']}")
    assert answer.status_code == 200, answer.text
    return str(answer.text)


async def test_a_failed_job_with_a_checkpoint_offers_to_go_on_before_it_offers_the_start() -> None:
    async with orchestrator(pages=ROUTES) as running:
        up = await uploading(running)
        await up.checkpoint(75)
        await up.agent.report(up.offer, "failed", exit_code=1)
        html = await page_of(running, up)
        job_id = up.offer["job_id"]
        assert f'{{"resume_from": "{job_id}:75"}}' in html
        assert html.index("Resume from step 75") < html.index("Retry</button>")
        again = await running.post(f"/api/jobs/{job_id}/retry", {"resume_from": f"{job_id}:75"})
        new = await running.http.get(f"/jobs/{again['id']}")
        assert "Resumes from" in new.text
        assert f"{job_id}:75" in new.text


async def test_a_completed_job_says_where_its_model_is_and_does_not_offer_to_go_on() -> None:
    async with orchestrator(pages=ROUTES) as running:
        up = await uploading(running)
        await up.checkpoint(75)
        await up.agent.report(up.offer, "completed", exit_code=0)
        job_id = up.offer["job_id"]
        published = Publication(
            job_id=job_id,
            publish=Publish(to="hf://someone/cats", secret="hub"),
            state=PublicationState.PUBLISHED,
            created_at=1.0,
            not_before=1.0,
            url="https://hub.example/someone/cats",
        )
        await running.fleet.act(lambda transaction: transaction.tx.put_publication(published))
        html = await page_of(running, up)
        assert "Published to" in html
        assert "https://hub.example/someone/cats" in html
        assert "Resume from step" not in html


async def test_the_form_to_train_takes_a_checkpoint_to_go_on_from() -> None:
    async with orchestrator(pages=ROUTES) as running:
        await running.save_config()
        answer = await running.http.get("/train")
        assert answer.status_code == 200
        assert 'name="resume_from"' in answer.text
