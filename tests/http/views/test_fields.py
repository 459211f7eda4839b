"""Views take over what has the same name, and say the rest themselves."""

from msgspec import Struct

from simpletuner_fleet.http.views.fields import Time, view_of


class Thing(Struct, kw_only=True):
    id: str = "t_1"
    created_at: float = 0.5
    ended_at: float | None = None
    gpus: tuple[str, ...] = ("a", "b")
    state: str = "running"
    hidden: str = "not for the wire"

    @property
    def gpu_count(self) -> int:
        return len(self.gpus)


class ThingView(Struct, kw_only=True):
    id: str
    status: str
    created_at: Time
    ended_at: Time
    gpus: list[str]
    gpu_count: int
    note: str = "unless somebody says otherwise"


def test_a_view_takes_over_fields_and_properties_of_the_same_name() -> None:
    thing = Thing()
    assert view_of(ThingView, thing, status=thing.state) == ThingView(
        id="t_1",
        status="running",
        created_at="1970-01-01T00:00:00.500Z",
        ended_at=None,
        gpus=["a", "b"],
        gpu_count=2,
    )


def test_what_is_given_goes_before_what_is_taken_over() -> None:
    assert view_of(ThingView, Thing(), status="x", id="t_2", gpus=[]).id == "t_2"
