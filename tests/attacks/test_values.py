"""Whoever sends values that are well-formed and mad: refused at the door, and harmless where they are stored already."""

from typing import Any

import msgspec
import pytest
from msgspec import inspect

from simpletuner_fleet.core.bounds import MAX_REMARK_CHARS
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.http.application import ROUTES
from simpletuner_fleet.http.edge.bodies import MAX_QUERY_BYTES
from simpletuner_fleet.ports import ApiToken, JobNote
from simpletuner_fleet.web import routes
from simpletuner_fleet.web.frame.problems import problem_page
from tests.http.api.jobs.test_logs_api import taken
from tests.http.api_kit import orchestrator

HUGE = "9" * 20
FREE_FORM = {"MetricPoint.values"}
"""A loss may be as large as it likes; `storage.metrics` takes it as a float and shows what no JSON has as a word."""
READ_BY_RULE = {"LogChunk.data"}
"""Base64 as long as the body may be."""


def unbounded(kind: inspect.Type, where: str, places: set[str]) -> set[str]:
    """Names every number and text of a type, however deep, that may be as large as it likes."""
    if isinstance(kind, inspect.StructType):
        for field in kind.fields:
            unbounded(field.type, f"{kind.cls.__name__}.{field.encode_name}", places)
    endless_number = isinstance(kind, inspect.IntType | inspect.FloatType) and (
        (kind.ge is None and kind.gt is None) or kind.le is None
    )
    endless_text = isinstance(kind, inspect.StrType) and kind.max_length is None
    if endless_number or endless_text:
        places.add(where)
    for one in parts_of(kind):
        unbounded(one, where, places)
    return places


def parts_of(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    match kind:
        case inspect.Metadata():
            return (kind.type,)
        case inspect.UnionType():
            return tuple(kind.types)
        case inspect.ListType() | inspect.VarTupleType():
            return (kind.item_type,)
        case inspect.DictType() if not isinstance(kind.value_type, inspect.AnyType):
            return (kind.key_type, kind.value_type)
        case _:
            return ()


def test_every_number_and_text_that_a_body_may_hold_has_a_bound() -> None:
    places: set[str] = set()
    for row in ROUTES:
        if row.body not in (None, bytes):
            unbounded(inspect.type_info(row.body), row.path, places)
    assert places <= FREE_FORM | READ_BY_RULE, sorted(places)


def test_every_number_that_a_query_may_hold_has_a_bound() -> None:
    assert MAX_QUERY_BYTES <= 8192, "texts are bounded by the whole of it"
    for row in ROUTES:
        for field in msgspec.structs.fields(row.query) if row.query else ():
            for one in options(inspect.type_info(field.type)):
                if isinstance(one, inspect.IntType | inspect.FloatType):
                    assert one.ge is not None, (row.path, field.name)
                    assert one.le is not None, (row.path, field.name)
                    assert one.le < 2**63, (row.path, field.name)


def options(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    return tuple(kind.types) if isinstance(kind, inspect.UnionType) else (kind,)


@pytest.mark.parametrize("at", [1e300, -1e300, -1.0, 253_402_300_800.0])
async def test_a_note_from_beyond_the_calendar_is_refused(at: float) -> None:
    async with orchestrator() as running:
        log = await taken(running)
        note = {"id": "n1", "at": at, "kind": "nan_loss", "text": "x"}
        path = f"job/{log.offer['job_id']}/notes"
        await log.agent.call(path, {"epoch": log.offer["epoch"], "notes": [note]}, expect=422)


async def test_a_token_cannot_outlive_the_calendar() -> None:
    async with orchestrator() as running:
        for seconds in (1e300, 1e11, -1e300):
            body = {"name": "long", "permissions": ["jobs.read"], "expires_in_s": seconds}
            answer = await running.http.post("/api/admin/tokens", json=body)
            assert answer.status_code == 422, answer.text


async def test_mad_rows_that_are_stored_already_poison_no_page() -> None:
    async with orchestrator(pages=routes.ROUTES, problem_page=problem_page) as running:
        log = await taken(running)
        job_id = log.offer["job_id"]
        await running.fleet.act(
            lambda transaction: transaction.tx.add_notes(
                [JobNote(id="1:n", job_id=job_id, attempt_number=1, at=1e300, kind="k", text="t", data={})]
            )
        )
        token = ApiToken(
            id="t_old",
            name="old",
            token_hash=tokens.hashed("x"),
            permissions=(),
            created_at=-1e300,
            expires_at=1e300,
        )
        await running.fleet.act(lambda transaction: transaction.tx.add_api_token(token))
        shown = await running.get(f"/api/jobs/{job_id}/events")
        assert shown["notes"][0]["at"].startswith("9999-")
        listed = (await running.get("/api/admin/tokens"))["tokens"]
        assert any((one["expires_at"] or "").startswith("9999-") for one in listed)
        for page in (f"/jobs/{job_id}", "/admin/tokens", "/audit", "/"):
            answer = await running.http.get(page, headers={"Accept": "text/html"})
            assert answer.status_code < 500, (page, answer.text[:500])


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/api/configs/c?version=" + HUGE, None),
        ("GET", "/api/configs/c/diff?from=" + HUGE, None),
        ("GET", "/api/audit?offset=" + HUGE, None),
        ("GET", "/api/audit?since=" + HUGE, None),
        ("GET", "/api/jobs/{job}/logs?offset=" + HUGE, None),
        ("GET", "/api/jobs/{job}/logs/search?q=x&from=" + HUGE, None),
        ("GET", "/api/jobs/{job}/metrics?attempt=" + HUGE, None),
        ("POST", "/api/queue/{job}/cancel", {"grace_s": 1e300}),
        ("POST", "/api/queue/{job}/priority", {"priority": int(HUGE)}),
        ("POST", "/api/queue/submit", {"config": {"settings": {}}, "time_limit_s": 1e300}),
        ("POST", "/api/queue/submit", {"config": {"settings": {}}, "min_vram_gb": 1e300}),
        ("POST", "/api/queue/concurrency", {"global_running": int(HUGE)}),
        ("POST", "/api/queue/{job}/reject", {"reason": "x" * (MAX_REMARK_CHARS + 1)}),
    ],
)
async def test_numbers_beyond_every_bound_are_told_to_the_person(method: str, path: str, body: Any) -> None:
    async with orchestrator() as running:
        log = await taken(running)
        await running.save_config()
        answer = await running.http.request(method, path.replace("{job}", log.offer["job_id"]), json=body)
        assert answer.status_code == 422, answer.text


async def test_an_epoch_of_twenty_digits_is_refused_and_opens_nothing() -> None:
    async with orchestrator() as running:
        log = await taken(running)
        base = f"/api/workers/job/{log.offer['job_id']}"
        for path, body in (
            ("accept", {"epoch": int(HUGE), "attempt": 1}),
            ("status", {"epoch": int(HUGE), "status": "completed"}),
            ("metrics", {"epoch": int(HUGE), "first": 0, "points": []}),
            ("notes", {"epoch": int(HUGE), "notes": []}),
        ):
            answer = await log.agent.http.post(f"{base}/{path}", json=body)
            assert answer.status_code == 422, (path, answer.text)
        assert (await running.job(log.offer["job_id"]))["status"] == "running"


async def test_a_worker_that_leaves_with_a_novel_leaves_a_sentence_behind() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        await agent.call("disconnect", {"reason": "x" * 200_000})
        entries = (await running.get("/api/audit"))["entries"]
        said = [one["details"].get("reason", "") for one in entries]
        assert max(map(len, said)) == MAX_REMARK_CHARS
