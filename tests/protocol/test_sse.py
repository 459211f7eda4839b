import json
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpletuner_fleet.protocol.messages import Drain, Ping
from simpletuner_fleet.protocol.sse import Decoder, EventTooLarge, ServerEvent, encode, encode_raw

names = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1, max_size=6).filter(
    lambda name: not name.startswith(" ")
)
lines = st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"").replace(b"\r", b""))
events = st.lists(
    st.builds(
        lambda name, number, data: ServerEvent(name, str(number), b"\n".join(data)),
        names,
        st.integers(0, 10**9),
        st.lists(lines, min_size=1, max_size=3),
    ),
    max_size=6,
)


def written(event: ServerEvent, ending: bytes = b"\n") -> bytes:
    data = [b"data: " + line for line in event.data.split(b"\n")]
    whole = [b"event: " + event.name.encode(), b"id: " + event.id.encode(), *data, b"", b""]
    return ending.join(whole)


def read(stream: bytes, cuts: list[int]) -> list[ServerEvent]:
    decoder = Decoder()
    bounds = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    return [event for start, end in pairwise(bounds) for event in decoder.feed(stream[start:end])]


def feed_all(decoder: Decoder, chunks: list[bytes]) -> None:
    for chunk in chunks:
        for _ in decoder.feed(chunk):
            pass


@settings(max_examples=100)
@given(events, st.lists(st.integers(0, 10**6), max_size=20), st.sampled_from([b"\n", b"\r\n"]))
def test_events_arrive_whole_however_their_bytes_are_cut(
    sent: list[ServerEvent], cuts: list[int], ending: bytes
) -> None:
    stream = b"".join(written(event, ending) for event in sent)
    assert read(stream, cuts) == sent
    assert read(stream, list(range(len(stream)))) == sent


@settings(max_examples=100)
@given(st.binary(max_size=200), st.lists(st.integers(0, 10**6), max_size=20))
def test_any_bytes_at_all_mean_the_same_however_they_are_cut(stream: bytes, cuts: list[int]) -> None:
    assert read(stream, cuts) == read(stream, [])


@settings(max_examples=100)
@given(st.dictionaries(st.text(max_size=5), st.text(max_size=20)), st.integers(0, 10**9))
def test_what_is_encoded_is_decoded(content: dict[str, str], number: int) -> None:
    data = json.dumps(content).encode()
    assert read(encode_raw("job", number, data), []) == [ServerEvent("job", str(number), data)]


def test_a_text_with_line_breaks_stays_one_event() -> None:
    message = Drain(note="one\ntwo\r\nthree\u2028four\n\nevent: job_submit")
    (event,) = read(encode(message, 4), [])
    assert (event.name, event.id) == ("drain", "4")
    assert json.loads(event.data)["note"] == message.note


def test_comments_and_unknown_fields_are_skipped() -> None:
    stream = b": hello\n\n:\nretry: 5\nevent: ping\n: in between\nwhatever\ndata: {}\nid: 1\n\n: bye\n"
    assert read(stream, []) == [ServerEvent("ping", "1", b"{}")]


def test_an_event_without_data_is_none_and_leaves_no_name_behind() -> None:
    assert read(b"event: ghost\n\ndata: x\n\n", []) == [ServerEvent("", "", b"x")]


def test_an_id_holds_until_the_next_one() -> None:
    stream = b"id: 7\ndata: a\n\ndata: b\n\nid: 8\ndata: c\n\n"
    assert [event.id for event in read(stream, [])] == ["7", "7", "8"]


def test_one_space_after_the_colon_is_not_data_and_none_is_needed() -> None:
    assert [event.data for event in read(b"data:a\n\ndata: a\n\ndata:  a\n\ndata\n\n", [])] == [
        *(b"a", b"a", b" a", b""),
    ]


def test_half_an_event_is_not_told() -> None:
    assert read(encode(Ping(), 1)[:-1], []) == []


def test_a_name_that_is_no_text_does_no_harm() -> None:
    assert read(b"event: \xff\xfe\ndata: x\n\n", []) == [ServerEvent("\ufffd\ufffd", "", b"x")]


@pytest.mark.parametrize(
    "chunk",
    [b"data: " + b"x" * 100, b"data: x\n" * 20, b"x" * 101, b"event: " + b"x" * 100 + b"\n"],
)
def test_an_event_larger_than_allowed_is_refused(chunk: bytes) -> None:
    decoder = Decoder(max_event_bytes=100)
    with pytest.raises(EventTooLarge):
        list(decoder.feed(chunk))


def test_an_event_that_grows_past_the_limit_byte_by_byte_is_refused() -> None:
    decoder = Decoder(max_event_bytes=100)
    with pytest.raises(EventTooLarge):
        feed_all(decoder, [b"x"] * 200)


def test_events_at_the_limit_pass_one_after_another() -> None:
    decoder = Decoder(max_event_bytes=100)
    event = b"data: " + b"x" * 92 + b"\n\n"
    for _ in range(50):
        assert len(list(decoder.feed(event))) == 1


def test_comments_without_end_are_no_event() -> None:
    decoder = Decoder(max_event_bytes=100)
    for _ in range(1000):
        assert list(decoder.feed(b": still here\n")) == []


def test_memory_stays_bounded_whatever_the_peer_sends() -> None:
    decoder = Decoder(max_event_bytes=100_000)
    tracemalloc.start()
    try:
        feed_all(decoder, [b": " + b"c" * 500 + b"\ndata: " + b"x" * 500 + b"\n\n"] * 2_000)
        with pytest.raises(EventTooLarge):
            feed_all(decoder, [b"x" * 1_000] * 1_000)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
