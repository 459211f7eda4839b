"""The worker's ear: whatever bytes come in, cut anywhere, it hears events or gives the line up, and hoards nothing."""

from hypothesis import given, settings
from hypothesis import strategies as st

from simpletuner_fleet.protocol.sse import Decoder, EventTooLarge, ServerEvent

pieces = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [
            b"\n",
            b"\r\n",
            b"\r",
            b"\n\n",
            b":",
            b": ping\n",
            b"data:",
            b"data: {}\n\n",
            b"data\n",
            b"event: job_submit\n",
            b"event:\xff\xfe\n",
            b"id: \x00\n",
            b"retry: never\n",
            b"\xef\xbb\xbf",
            b"data: " + b"x" * 300 + b"\n",
        ]
    ),
)


def heard(chunks: list[bytes], limit: int) -> tuple[list[ServerEvent], bool]:
    decoder, events = Decoder(limit), []
    try:
        for chunk in chunks:
            events += list(decoder.feed(chunk))
    except EventTooLarge:
        return events, True
    return events, False


@settings(derandomize=True, max_examples=400, database=None)
@given(st.lists(pieces, max_size=30))
def test_garbage_is_heard_as_events_or_given_up(chunks: list[bytes]) -> None:
    events, _ = heard(chunks, 256)
    assert all(len(event.data) <= 256 for event in events)


@settings(derandomize=True, max_examples=200, database=None)
@given(st.lists(pieces, max_size=12), st.data())
def test_where_the_bytes_are_cut_makes_no_difference(chunks: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(chunks)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    parts = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert heard(parts, 1 << 20) == heard([whole], 1 << 20)


def test_an_endless_event_is_given_up_before_it_fills_the_memory() -> None:
    decoder = Decoder()
    fed = 0
    try:
        for _ in range(200):
            fed += 1 << 20
            list(decoder.feed(b"data: " + b"x" * ((1 << 20) - 6)))
    except EventTooLarge:
        pass
    assert fed <= 18 << 20
