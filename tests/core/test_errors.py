import inspect

from simpletuner_fleet.core import errors
from simpletuner_fleet.core.errors import FleetError, Forbidden, Invalid, NameTaken, TooManyRequests
from simpletuner_fleet.core.events import EventType

FAMILY = [
    member
    for _, member in inspect.getmembers(errors, inspect.isclass)
    if issubclass(member, FleetError) and member is not FleetError
]


def test_every_error_has_a_code_and_a_message_of_its_own() -> None:
    codes = [member.code for member in FAMILY]
    assert len(set(codes)) == len(codes)
    assert "error" not in codes
    assert all((member.__doc__ or "").strip().endswith(".") for member in FAMILY)


def test_a_message_is_the_class_docstring_unless_said_otherwise() -> None:
    assert str(NameTaken()) == "A worker with this name already exists."
    assert NameTaken().next == NameTaken.next_step
    own = NameTaken("taken by w_1", next_step="rename", worker_id="w_1")
    assert (own.detail, own.next, own.params) == ("taken by w_1", "rename", {"worker_id": "w_1"})


def test_errors_with_parameters_name_them() -> None:
    assert Forbidden("admin.workers").params == {"permission": "admin.workers"}
    assert "admin.workers" in Forbidden("admin.workers").detail
    assert TooManyRequests(7.0).params == {"retry_after_s": 7.0}
    assert Invalid("bad", path="$.x").params == {"errors": [{"path": "$.x", "detail": "bad"}]}


def test_every_event_type_names_its_target_and_a_past_tense() -> None:
    assert all(len(type_.value.split(".")) == 2 for type_ in EventType)
    assert len({type_.value for type_ in EventType}) == len(EventType)
