import json
import typing

import msgspec
import pytest

from simpletuner_fleet.protocol import messages
from simpletuner_fleet.protocol.messages import (
    FINAL_REPORTS,
    Accept,
    CheckpointNow,
    Drain,
    Goodbye,
    Heartbeat,
    HeldState,
    JobCancel,
    JobSubmit,
    LogChunk,
    Ping,
    Register,
    ReportStatus,
    Shutdown,
    StatusReport,
    StreamMessage,
    TokenRotated,
    ValidateNow,
)
from simpletuner_fleet.protocol.sse import Decoder, encode

OFFER = JobSubmit(
    job_id="j_1",
    attempt=1,
    attempt_id="a_1",
    epoch=4,
    config_name="c",
    config={"--lr": 1},
    trainer="simpletuner",
    upload_endpoint="https://x/api",
)
EXAMPLES: dict[type, StreamMessage] = {
    JobSubmit: OFFER,
    JobCancel: JobCancel(job_id="j_1", epoch=4),
    Drain: Drain(),
    Shutdown: Shutdown(),
    TokenRotated: TokenRotated(),
    CheckpointNow: CheckpointNow(job_id="j_1", epoch=4, attempt=1, asked_at=1.5),
    ValidateNow: ValidateNow(job_id="j_1", epoch=4, attempt=1, asked_at=1.5),
    Ping: Ping(),
}


def test_there_is_an_example_of_every_stream_message() -> None:
    assert set(EXAMPLES) == set(typing.get_args(StreamMessage))


@pytest.mark.parametrize("message", EXAMPLES.values(), ids=lambda message: message.type)
def test_the_name_of_an_event_is_the_type_in_its_json(message: StreamMessage) -> None:
    stream = encode(message, 9)
    (event,) = Decoder().feed(stream)
    assert event.id == "9"
    assert event.name == message.type == json.loads(event.data)["type"]
    assert msgspec.json.decode(event.data, type=type(message)) == message


def test_the_stream_speaks_of_eight_things() -> None:
    assert {message.type for message in EXAMPLES.values()} == {
        *("job_submit", "job_cancel", "drain", "shutdown", "token_rotated", "checkpoint_now", "validate_now"),
        "ping",
    }


@pytest.mark.parametrize("message", EXAMPLES.values(), ids=lambda message: message.type)
def test_older_agents_find_the_json_on_one_line_that_begins_with_data(message: StreamMessage) -> None:
    data_lines = [line for line in encode(message, 1).decode().split("\n") if line.startswith("data: ")]
    assert len(data_lines) == 1
    assert json.loads(data_lines[0].removeprefix("data: "))["type"] == message.type


def test_an_offer_without_an_upload_token_has_no_such_key_and_never_null() -> None:
    bare = json.loads(msgspec.json.encode(OFFER))
    assert "upload_token" not in bare
    with_token = json.loads(msgspec.json.encode(msgspec.structs.replace(OFFER, upload_token="ut_x")))
    assert with_token["upload_token"] == "ut_x"
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(json.dumps({**bare, "upload_token": None}), type=JobSubmit)


def test_an_offer_carries_what_the_contract_promises() -> None:
    assert set(json.loads(msgspec.json.encode(OFFER))) >= {
        *("job_id", "attempt", "epoch", "config_name", "config", "dataloader", "trainer", "gpus", "env"),
        *("resume", "upload_endpoint", "time_limit_s", "files", "gpu_indices", "type"),
    }


STRUCTS = [
    member
    for member in vars(messages).values()
    if isinstance(member, type) and issubclass(member, msgspec.Struct) and member is not msgspec.Struct
]
REQUIRED: dict[type, dict[str, object]] = {
    Register: {},
    Heartbeat: {},
    Accept: {"epoch": 1},
    StatusReport: {"status": "running"},
    Goodbye: {},
    LogChunk: {"epoch": 1, "offset": 0, "data": ""},
}


@pytest.mark.parametrize("message", REQUIRED)
def test_a_worker_may_say_more_than_we_know(message: type) -> None:
    body = {**REQUIRED[message], "from_the_future": {"x": [1]}, "type": "whatever"}
    plain: object = msgspec.json.decode(json.dumps(REQUIRED[message]), type=message)
    assert msgspec.json.decode(json.dumps(body), type=message) == plain


@pytest.mark.parametrize("message", STRUCTS, ids=lambda struct: struct.__name__)
def test_no_message_refuses_fields_it_does_not_know(message: type[msgspec.Struct]) -> None:
    assert not message.__struct_config__.forbid_unknown_fields


@pytest.mark.parametrize(
    "status", ["", "done", "RUNNING", "dispatched", "queued", "null", None, 5, ["running"]]
)
def test_an_unknown_report_status_is_refused(status: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(json.dumps({"status": status}), type=StatusReport)


@pytest.mark.parametrize("status", list(ReportStatus))
def test_every_known_report_status_is_read(status: ReportStatus) -> None:
    assert msgspec.json.decode(json.dumps({"status": status.value}), type=StatusReport).status is status


def test_a_report_is_final_unless_the_trainer_goes_on() -> None:
    assert set(ReportStatus) - FINAL_REPORTS == {"starting", "running", "training"}


def test_an_older_agents_registration_is_known_as_such() -> None:
    body = {
        "name": "gpu-1",
        "gpu_info": {"name": "A100", "vram_gb": 80, "count": 2, "driver": "550", "accelerator": "cuda"},
        "persistent": True,
        "current_job_id": None,
    }
    old = msgspec.json.decode(json.dumps(body), type=Register)
    assert old.legacy
    assert old.gpu_info is not None
    assert (old.gpu_info.count, old.max_jobs, old.trainers) == (2, 1, None)
    assert not msgspec.json.decode(json.dumps({**body, "trainers": []}), type=Register).legacy
    assert not msgspec.json.decode(json.dumps({**body, "attempts": []}), type=Register).legacy


def test_an_attempt_held_is_taken_for_running_unless_said_otherwise() -> None:
    body = {"attempts": [{"job_id": "j_1", "epoch": 3}, {"job_id": "j_2", "epoch": 4, "state": "finished"}]}
    held = msgspec.json.decode(json.dumps(body), type=Register).attempts
    assert held is not None
    assert [item.state for item in held] == [HeldState.RUNNING, HeldState.FINISHED]


@pytest.mark.parametrize(
    ("message", "body"),
    [
        (Register, b"[]"),
        (Register, b'{"attempts": [{"job_id": "j_1"}]}'),
        (Register, b'{"labels": {"a": 1}}'),
        (Heartbeat, b'{"gpus": {}}'),
        (Accept, b"{}"),
        (Accept, b'{"epoch": "1"}'),
        (LogChunk, b'{"epoch": 1, "offset": -1.5, "data": ""}'),
        (StatusReport, b"\xff"),
    ],
)
def test_a_malformed_message_is_refused_and_not_guessed_at(message: type, body: bytes) -> None:
    with pytest.raises((msgspec.ValidationError, msgspec.DecodeError)):
        msgspec.json.decode(body, type=message)
