"""When jobs complete, as any watcher of `/api/events` learns it."""

import http.client
import json
import threading
import time
from urllib.parse import urlsplit

from bench.programs import BenchmarkFailed, Server

DATA = b"data: "
COMPLETED_WITHIN_S = 60.0


class JobWatch:
    """Listens in a thread of its own and notes the time of every completion."""

    def __init__(self, server: Server) -> None:
        address = urlsplit(server.url)
        self._connection = http.client.HTTPConnection(str(address.hostname), address.port)
        headers = {"Authorization": f"Bearer {server.admin_token}", "Accept": "text/event-stream"}
        self._connection.request("GET", "/api/events", headers=headers)
        self._stream = self._connection.getresponse()
        if self._stream.status != 200:
            raise BenchmarkFailed(f"/api/events answered {self._stream.status}")
        self._completed_ns: dict[str, int] = {}
        self._failed: dict[str, str] = {}
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Is to be called when the server has ended, with which the listening ends."""
        self._thread.join()
        self._stream.close()
        self._connection.close()

    def completed_ns(self, job_id: str) -> int:
        """Waits for the completion and returns when it was heard of, in nanoseconds since 1970."""
        with self._news:
            known = self._news.wait_for(
                lambda: job_id in self._completed_ns or job_id in self._failed, COMPLETED_WITHIN_S
            )
            if not known or job_id in self._failed:
                raise BenchmarkFailed(f"a job did not complete: {self._failed.get(job_id, 'no news of it')}")
            return self._completed_ns[job_id]

    def _listen(self) -> None:
        """Ends with the server, whose end closes the connection."""
        while line := self._stream.readline():
            if line.startswith(DATA):
                self._note(json.loads(line[len(DATA) :]), time.time_ns())

    def _note(self, event: dict[str, object], at_ns: int) -> None:
        if event.get("type") != "job":
            return
        job_id, status = str(event["id"]), event.get("status")
        with self._news:
            if status == "completed":
                self._completed_ns.setdefault(job_id, at_ns)
            elif status in ("failed", "cancelled"):
                self._failed[job_id] = str(event)
            self._news.notify_all()
