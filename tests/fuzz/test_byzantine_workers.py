"""One worker that lies: whatever it says, nothing that is another's changes."""

import asyncio
import base64
import json
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from simpletuner_fleet.ports import View
from simpletuner_fleet.protocol.messages import (
    Accept,
    Goodbye,
    Heartbeat,
    LogChunk,
    Register,
    ReportStatus,
    StatusReport,
)
from tests.fuzz.near_schema import near
from tests.fuzz.server_kit import ADMIN, Peer, RunningServer, in_path

PLACES = (
    "$their_job",
    "$their_worker",
    "$their_attempt",
    "$offered_job",
    "$offered_attempt",
    "$waiting_job",
    "$own_job",
    "$own_worker",
)
EPOCHS = ("#their_epoch", "#offered_epoch", "#own_epoch")
names = st.sampled_from((*PLACES, *EPOCHS))
jobs = st.sampled_from(("$their_job", "$their_job", "$offered_job", "$waiting_job", "$own_job"))
epochs = st.sampled_from(EPOCHS)
held = st.lists(st.fixed_dictionaries({"job_id": jobs, "epoch": epochs}), max_size=4)
reports = st.fixed_dictionaries(
    {
        "status": st.sampled_from([one.value for one in ReportStatus]),
        "epoch": st.one_of(epochs, st.none()),
        "attempt": st.one_of(st.none(), st.integers(0, 3)),
    }
)
chunks = st.fixed_dictionaries(
    {
        "epoch": epochs,
        "offset": st.integers(0, 3),
        "data": st.binary(max_size=8).map(lambda data: base64.b64encode(data).decode()),
    }
)
lies = st.one_of(
    st.tuples(st.just("register"), st.fixed_dictionaries({"attempts": held, "seq": st.integers(0, 9)})),
    st.tuples(st.just("register"), near(Register, names)),
    st.tuples(
        st.just("heartbeat"),
        st.fixed_dictionaries(
            {"attempts": held}, optional={"worker_id": names, "status": names, "current_job_id": jobs}
        ),
    ),
    st.tuples(st.just("heartbeat"), near(Heartbeat, names)),
    st.tuples(jobs.map(lambda job: f"job/{job}/accept"), st.fixed_dictionaries({"epoch": epochs})),
    st.tuples(jobs.map(lambda job: f"job/{job}/accept"), near(Accept, names)),
    st.tuples(jobs.map(lambda job: f"job/{job}/status"), reports),
    st.tuples(jobs.map(lambda job: f"job/{job}/status"), near(StatusReport, names)),
    st.tuples(jobs.map(lambda job: f"job/{job}/logs"), chunks),
    st.tuples(jobs.map(lambda job: f"job/{job}/logs"), near(LogChunk, names)),
    st.tuples(
        st.just("disconnect"), st.fixed_dictionaries({"released": held}, optional={"worker_id": names})
    ),
    st.tuples(st.just("disconnect"), near(Goodbye, names)),
)


class Street:
    """An honest worker that runs a job, one that was offered a job, a job nobody can take, and a liar with a job."""

    def __init__(self) -> None:
        self.server = RunningServer()
        self.names: dict[str, Any] = {}
        self.liar: Peer
        self.upload_token = ""

    async def open(self) -> "Street":
        server = await self.server.open()
        honest = await server.worker("honest")
        await server.submit()
        (theirs,) = await honest.offers()
        await honest.accept(theirs)
        log = {"epoch": theirs["epoch"], "offset": 0, "data": base64.b64encode(b"precious").decode()}
        await honest.say(f"job/{theirs['job_id']}/logs", log)
        waiting_worker = await server.worker("offered")
        await server.submit()
        (offered,) = await waiting_worker.offers()
        waiting = await server.submit(worker_labels={"nobody": "has-this"})
        self.liar = await server.worker("liar")
        await server.submit()
        (own,) = await self.liar.offers()
        await self.liar.accept(own)
        self.upload_token = own["upload_token"]
        self.names = {
            "$their_job": theirs["job_id"],
            "$their_worker": honest.id,
            "$their_attempt": theirs["attempt_id"],
            "#their_epoch": theirs["epoch"],
            "$offered_job": offered["job_id"],
            "$offered_attempt": offered["attempt_id"],
            "#offered_epoch": offered["epoch"],
            "$waiting_job": waiting,
            "$own_job": own["job_id"],
            "$own_worker": self.liar.id,
            "#own_epoch": own["epoch"],
        }
        return self

    def fill(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.names.get(value, value)
        if isinstance(value, list):
            return [self.fill(one) for one in value]
        if isinstance(value, dict):
            return {str(self.fill(name)): self.fill(one) for name, one in value.items()}
        return value

    async def others(self) -> list[Any]:
        """Every row that is not the liar's, and every byte of the honest one's log."""

        def look(view: View) -> list[Any]:
            workers = [one for one in view.workers() if one.id != self.liar.id]
            rows: list[Any] = [*workers]
            for name in ("$their_job", "$offered_job", "$waiting_job"):
                rows.append(view.job(self.names[name]))
                rows += view.attempts_of_job(self.names[name])
            return rows

        rows = await self.server.store.read(look)
        logs = await self.server.ask(
            "GET", f"/api/jobs/{self.names['$their_job']}/logs", headers={"authorization": f"Bearer {ADMIN}"}
        )
        assert b"precious" in logs.body
        return [*rows, logs.body]

    async def lie(self, what: str, body: Any, *, upload: bool) -> None:
        headers = {"x-upload-token": self.upload_token} if upload else self.liar.headers
        path = "/".join(in_path(str(self.names.get(part, part))) for part in what.split("/"))
        raw = json.dumps(self.fill(body)).encode()
        answer = await self.server.ask("POST", f"/api/workers/{path}", raw=raw, headers=headers)
        assert answer.status < 500, (what, raw, answer)


@settings(
    max_examples=60,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)
@given(st.lists(st.tuples(lies, st.booleans()), min_size=1, max_size=25))
def test_no_lie_of_one_worker_changes_what_is_anothers(told_lies: list[tuple[tuple[str, Any], bool]]) -> None:
    async def story() -> None:
        street = await Street().open()
        before = await street.others()
        for (what, body), upload in told_lies:
            await street.lie(what, body, upload=upload)
            assert await street.others() == before, (what, street.fill(body))

    asyncio.run(story())


def test_a_stream_in_anothers_name_is_refused() -> None:
    async def story() -> None:
        street = await Street().open()
        before = await street.others()
        answer = await street.server.ask(
            "GET",
            "/api/workers/stream",
            headers=street.liar.headers,
            query=f"worker_id={street.names['$their_worker']}".encode(),
        )
        assert answer.status == 403
        assert await street.others() == before

    asyncio.run(story())
