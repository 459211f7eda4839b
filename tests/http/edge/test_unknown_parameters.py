"""A parameter that nobody knows is refused with the nearest name, or named in the answer, and never dropped in silence."""

import pytest

from simpletuner_fleet.http.edge.ignored import IGNORED_HEADER
from simpletuner_fleet.http.edge.routes import PUBLIC, Route
from tests.http.edge.edge_kit import ADMIN_HEADERS, Where, created, is_problem, nothing, search, whoami
from tests.http.edge_kit import running

ROUTES = [
    Route("GET", "/api/things", search, "jobs.read", query=Where),
    Route("GET", "/api/things/{id}", whoami, "jobs.read"),
    Route("GET", "/api/workers/things", search, PUBLIC, query=Where),
    Route("GET", "/page", search, PUBLIC, query=Where),
    Route("GET", "/api/old/things", search, "jobs.read", query=Where, older=True),
    Route("POST", "/api/old/things", created, "jobs.read", older=True),
    Route("DELETE", "/api/old/things", nothing, "jobs.read", older=True),
]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/api/things?limt=3", "There is no parameter 'limt' here; did you mean 'limit'?"),
        (
            "/api/things?limit=3&zzz=",
            "There is no parameter 'zzz' here; there are limit, min_vram_gb, label, follow.",
        ),
        ("/api/things/7?verbose=1", "There is no parameter 'verbose' here; this request takes none."),
    ],
)
async def test_it_is_refused_with_what_there_is(path: str, said: str) -> None:
    async with running(ROUTES) as here:
        problem = is_problem(await here.client.get(path, headers=ADMIN_HEADERS), 422, "invalid")
        assert problem["detail"] == said
        assert "leave it out" in problem["next"].lower()


async def test_who_may_not_ask_is_told_that_first() -> None:
    async with running(ROUTES) as here:
        assert (await here.client.get("/api/things?limt=3")).status_code == 401


@pytest.mark.parametrize(
    "path", ["/api/things?limit=3&_=1700000000", "/api/workers/things?limit=3&new=1", "/page?limit=3&utm=x"]
)
async def test_caches_other_releases_and_links_may_say_more(path: str) -> None:
    async with running(ROUTES) as here:
        answer = await here.client.get(path, headers=ADMIN_HEADERS)
        assert (answer.status_code, answer.json()["limit"]) == (200, 3)
        assert IGNORED_HEADER not in answer.headers


@pytest.mark.parametrize(("method", "status"), [("GET", 200), ("POST", 201), ("DELETE", 204)])
async def test_an_older_guides_request_is_told_what_was_ignored(method: str, status: int) -> None:
    async with running(ROUTES) as here:
        path = "/api/old/things?provider=replicate&%0Aa%2Cb=1"
        answer = await here.client.request(method, path, headers=ADMIN_HEADERS)
        assert answer.status_code == status
        assert answer.headers[IGNORED_HEADER] == "provider, %0Aa%2Cb"
