"""What a benchmark tells must be arithmetic one can trust."""

import asyncio

from bench.load.wire import Connection, EventReader, content_length
from bench.rows import Result, percentile, told


def test_a_percentile_is_a_value_that_was_measured() -> None:
    values = [float(number) for number in range(1, 101)]
    assert percentile(values, 0.50) == 50
    assert percentile(values, 0.99) == 99
    assert percentile(values, 1.0) == 100
    assert percentile([7.0], 0.99) == 7


def test_a_figure_tells_median_and_spread_and_a_target_its_verdict() -> None:
    result = Result(benchmark="b", title="t")
    assert result.add("speed", "jobs/s", [3.0, 1.0, 2.0]) == 2.0
    result.at_least("speed", 2.0, 2.5, "jobs/s")
    result.at_most("size", 1.0, 1.0, "KiB")
    text = told(result)
    assert "(1 to 3, 3 repetitions)" in text
    assert "MISS  speed" in text
    assert "pass  size" in text


def test_answers_cut_anywhere_are_read_whole() -> None:
    async def story() -> list[bytes]:
        connection = Connection()
        futures = [asyncio.get_running_loop().create_future() for _ in range(2)]
        connection._waiting.extend(futures)
        for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 204 No Content\r\n\r\n":
            connection.data_received(bytes([byte]))
        return [await future for future in futures]

    assert asyncio.run(story()) == [b"hi", b""]
    assert content_length(b"x: y\r\ncontent-length: 12") == 12


def test_events_in_chunks_cut_anywhere_are_heard_once() -> None:
    async def story() -> list[bytes]:
        heard: list[bytes] = []
        reader = EventReader(b"", heard.append)
        event = b'event: ping\nid: 1\ndata: {"type":"ping"}\n\n'
        stream = b"HTTP/1.1 200 OK\r\n\r\n" + b"%x\r\n%b\r\n" % (len(event), event) * 2
        for byte in stream:
            reader.data_received(bytes([byte]))
        await reader.opened
        return heard

    assert asyncio.run(story()) == [b'{"type":"ping"}'] * 2
