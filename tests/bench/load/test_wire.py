import asyncio

from bench.load.wire import Connection, EventReader, content_length


def test_answers_cut_anywhere_are_read_whole() -> None:
    async def story() -> list[bytes]:
        connection = Connection()
        futures = [asyncio.get_running_loop().create_future() for _ in range(2)]
        connection._unanswered.extend(futures)
        for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 204 No Content\r\n\r\n":
            connection.data_received(bytes([byte]))
        return [await future for future in futures]

    assert asyncio.run(story()) == [b"hi", b""]
    assert content_length(b"x: y\r\ncontent-length: 12") == 12


def test_events_in_chunks_cut_anywhere_are_heard_once() -> None:
    async def story() -> list[bytes]:
        events: list[bytes] = []
        reader = EventReader(b"", events.append)
        event = b'event: ping\nid: 1\ndata: {"type":"ping"}\n\n'
        stream = b"HTTP/1.1 200 OK\r\n\r\n" + b"%x\r\n%b\r\n" % (len(event), event) * 2
        for byte in stream:
            reader.data_received(bytes([byte]))
        await reader.opened
        return events

    assert asyncio.run(story()) == [b'{"type":"ping"}'] * 2
