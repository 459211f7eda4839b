"""Which row of the table a path belongs to, whichever way it is looked up."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from simpletuner_fleet.core.errors import NotFound
from simpletuner_fleet.http.edge.problems import MethodNotAllowed
from simpletuner_fleet.http.edge.route_table import RouteTable
from simpletuner_fleet.http.edge.routes import PUBLIC, Call, Route

METHODS = ("GET", "POST")


async def nothing(call: Call[None]) -> None:
    return None


def shape_of(path: str) -> tuple[str, ...]:
    return tuple("{}" if segment.startswith("{") else segment for segment in path.split("/")[1:])


def path_of(shape: tuple[str, ...]) -> str:
    named = [f"{{name{at}}}" if segment == "{}" else segment for at, segment in enumerate(shape)]
    return "/" + "/".join(named)


def expected(shapes: set[tuple[str, ...]], path: str) -> tuple[str, ...] | None:
    """Of all rows that a path fits, the one with a literal segment where they first differ."""
    segments = path.split("/")[1:]
    fitting = [
        shape
        for shape in shapes
        if len(shape) == len(segments)
        and all(one in ("{}", segment) for one, segment in zip(shape, segments, strict=True))
    ]
    return min(fitting, key=lambda shape: [segment == "{}" for segment in shape], default=None)


SEGMENTS = ("a", "b", "{}")
SHAPES = st.sets(st.lists(st.sampled_from(SEGMENTS), min_size=1, max_size=3).map(tuple), min_size=6)
PATHS = [
    "/" + "/".join(segments) for length in (1, 2, 3) for segments in product(("a", "b", "c"), repeat=length)
]


@given(SHAPES)
def test_a_path_belongs_to_the_row_that_says_the_most_of_it(shapes: set[tuple[str, ...]]) -> None:
    table = RouteTable([Route("GET", path_of(shape), nothing, PUBLIC) for shape in sorted(shapes)])
    for path in PATHS:
        wanted = expected(shapes, path)
        for method in METHODS:
            try:
                compiled, parameters = table.find(method, path)
            except NotFound:
                assert wanted is None
            except MethodNotAllowed:
                assert wanted is not None
                assert method == "POST"
            else:
                assert method == "GET"
                assert shape_of(compiled.row.path) == wanted
                said = compiled.row.path.format_map(parameters)
                assert said == path
