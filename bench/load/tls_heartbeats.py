"""Heartbeats that each come over a new TLS connection, which resumes the session of the one before.

One process, blocking sockets: what it is to send on its input, what came of it on its output, a line of JSON each.
"""

import socket
import ssl
import sys
import time
from urllib.parse import urlsplit

import msgspec

from bench.load import worker_messages
from bench.load.wire import END_OF_HEAD, content_length, post
from bench.load.worker_messages import WorkerAccount
from simpletuner_fleet.protocol.messages import HeartbeatAnswer

TIMEOUT_S = 30.0
READ_BYTES = 16 * 1024


class HeartbeatTask(msgspec.Struct, kw_only=True):
    url: str
    ca_file: str
    accounts: list[WorkerAccount]
    seconds: float


class HeartbeatOutcome(msgspec.Struct, kw_only=True):
    heartbeats: int
    resumed: int
    seconds: float
    cpu_s: float


class TlsClient:
    def __init__(self, task: HeartbeatTask) -> None:
        address = urlsplit(task.url)
        self._address = (str(address.hostname), int(address.port or 443))
        self._context = ssl.create_default_context(cafile=task.ca_file)
        self._session: ssl.SSLSession | None = None
        self.resumed = 0

    def send(self, request: bytes) -> bytes:
        """Returns the body of the answer; its tickets are for the next connection."""
        plain = socket.create_connection(self._address, TIMEOUT_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._context.wrap_socket(
            plain, server_hostname=self._address[0], session=self._session
        ) as connection:
            connection.sendall(request)
            body = read_answer(connection)
            self.resumed += bool(connection.session_reused)
            self._session = connection.session
        return body


def read_answer(connection: socket.socket) -> bytes:
    """Reads one answer; anything but success is an error."""
    data = b""
    while (end := data.find(END_OF_HEAD)) < 0:
        data += _read(connection)
    head = data[:end].lower()
    if head[9:10] != b"2":
        raise SystemExit(f"a heartbeat was answered: {data.decode(errors='replace')}")
    whole = end + len(END_OF_HEAD) + content_length(head)
    while len(data) < whole:
        data += _read(connection)
    return data[end + len(END_OF_HEAD) : whole]


def _read(connection: socket.socket) -> bytes:
    data = connection.recv(READ_BYTES)
    if not data:
        raise SystemExit("the server closed the connection before it had answered")
    return data


def requests_of(task: HeartbeatTask, client: TlsClient) -> list[bytes]:
    """Each worker's heartbeat, with the audit head that its first answer told."""
    host = urlsplit(task.url).netloc
    requests = []
    for account in task.accounts:
        headers = worker_messages.headers_of_calls(host, account.token)
        first = post("/api/workers/heartbeat", headers, worker_messages.heartbeat(account, None))
        answer = msgspec.json.decode(client.send(first), type=HeartbeatAnswer)
        body = worker_messages.heartbeat(account, answer.audit_head)
        requests.append(post("/api/workers/heartbeat", headers, body))
    return requests


def main() -> None:
    task = msgspec.json.decode(sys.stdin.readline(), type=HeartbeatTask)
    client = TlsClient(task)
    requests = requests_of(task, client)
    client.resumed = 0
    print("ready", flush=True)
    sys.stdin.readline()
    began, cpu_began, count = time.monotonic(), time.process_time(), 0
    while time.monotonic() < began + task.seconds:
        client.send(requests[count % len(requests)])
        count += 1
    outcome = HeartbeatOutcome(
        heartbeats=count,
        resumed=client.resumed,
        seconds=time.monotonic() - began,
        cpu_s=time.process_time() - cpu_began,
    )
    print(msgspec.json.encode(outcome).decode(), flush=True)


if __name__ == "__main__":
    main()
