"""Why a worker gets no jobs is said in the reader's language; what its programs say stays as it is."""

import pytest
from playwright.async_api import expect

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.languages import spoken_in, translator
from simpletuner_fleet.languages.names import BLAMES
from simpletuner_fleet.web.parts.audit_rows import value_text
from simpletuner_fleet.web.parts.refusals import refusal_text
from tests.web.browser import LANGUAGES, Language, axe, visit
from tests.web.console import Pages
from tests.web.stage import Stage

SAYS = "the worker could not prepare the job: No space left on device"


async def fail_to_start(stage: Stage, times: int) -> None:
    for number in range(times):
        work = await stage.crew.begin(
            "admin", config_name="sdxl-cats", target="worker", name=f"never-{number}"
        )
        await work.report("failed", error=SAYS, reason="start_failed", blame="worker")


@pytest.mark.parametrize("language", ["en", "hi"])
async def test_the_page_of_a_worker_says_why_it_gets_no_jobs(
    stage: Stage, page_as: Pages, language: Language
) -> None:
    machine = await stage.machine("nova")
    page = await page_as(stage, "admin", language=language)
    await visit(page, f"/admin/workers/{machine.id}")
    words = translator(language)
    await expect(page.locator("#start-trouble")).to_be_empty()
    await fail_to_start(stage, 1)
    note = page.locator("#start-trouble")
    await expect(note).to_contain_text(words.gettext("It could not start its jobs, and gets none until:"))
    await expect(note).to_contain_text(words.gettext(BLAMES["worker"]))
    await expect(note.locator("code")).to_have_text(SAYS)
    await axe(page)
    await visit(page, "/admin/workers")
    await expect(page.locator(f"#row-{machine.id}")).to_contain_text(
        words.gettext("It could not start its jobs")
    )


@pytest.mark.parametrize("language", [one for one in LANGUAGES if one != "en"])
def test_what_is_known_by_a_code_is_said_in_every_language(language: Language) -> None:
    with spoken_in(translator(language)):
        for blame, english in BLAMES.items():
            assert value_text("worker.set_aside", "blame", blame, {}) not in (english, blame)
        assert value_text("job.released", "reason", "start_failed", {}) not in (
            "start_failed",
            "The trainer did not start",
        )
        assert value_text("worker.set_aside", "why", SAYS, {}) == SAYS


@pytest.mark.parametrize("language", [one for one in LANGUAGES if one != "en"])
def test_why_a_machine_was_refused_is_said_in_every_language(language: Language) -> None:
    english = "A trainer can report at most 4000 options and a version."
    entry = AuditEntry(
        seq=1,
        at=1.0,
        event_type="worker.registration_failed",
        actor_id="unknown",
        actor_name="unknown",
        ip="10.0.0.1",
        target_type="worker",
        target_id="w_1",
        details={"why": english, "code": "invalid"},
        hash="",
    )
    with spoken_in(translator(language)):
        text = refusal_text(entry)
    assert "10.0.0.1" in text
    assert english not in text
