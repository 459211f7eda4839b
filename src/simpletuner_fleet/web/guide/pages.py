"""Serves the guide's pages in the console's style: open to everybody, in the reader's language."""

from simpletuner_fleet.http.edge.routes import PUBLIC, Call, Reply, Route
from simpletuner_fleet.web.frame.page import language_of, page
from simpletuner_fleet.web.guide.built_pages import guide_in

CONTENTS = ""


async def contents(call: Call[None]) -> Reply:
    return _page(call, CONTENTS)


async def guide_page(call: Call[None]) -> Reply:
    return _page(call, call.path["page"])


def _page(call: Call[None], slug: str) -> Reply:
    guide = guide_in(language_of(call))
    before, after = guide.neighbours(guide.page(slug).slug)
    return page(
        call,
        "guide/page.html",
        guide=guide,
        shown=guide.page(slug),
        by_slug={one.slug: one for one in guide.pages},
        before=before,
        after=after,
    )


ROUTES = (
    Route("GET", "/guide", contents, PUBLIC, summary="The guide's contents"),
    Route("GET", "/guide/{page}", guide_page, PUBLIC, summary="A page of the guide"),
)
