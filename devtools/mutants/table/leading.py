"""Several orchestrators, and models on their way out."""

from devtools.mutants.table.mutant import SIM, Mutant

LEADING = (
    # Several orchestrators
    Mutant(
        "lease-counted-from-the-answer",
        "a leader counts its lease from when the renewal was answered, not from when it was sent",
        "orchestrator/leadership.py",
        "            self._sent_at = sent_at\n            self._heard_at",
        "            self._sent_at = self._clock()\n            self._heard_at",
        ("tests/orchestrator/test_leadership.py",),
    ),
    Mutant(
        "writes-are-not-fenced",
        "a replaced leader's write is kept: its transaction does not look at the term",
        "store/postgres.py",
        "if self._term is not None and not self._still_leads():",
        "if self._term is None and not self._still_leads():",
        ("tests/store/test_lease_book.py",),
    ),
    Mutant(
        "the-term-is-read-without-a-lock",
        "a takeover does not wait for the write under way, which is then kept beside the next leader's",
        "store/postgres.py",
        "WHERE term = {term:d} FOR KEY SHARE",
        "WHERE term = {term:d}",
        ("tests/store/test_lease_book.py",),
    ),
    Mutant(
        "taken-over-too-early",
        "a follower takes over before the leader's promises have ended",
        "core/leadership.py",
        "return now - watch.since >= LEASE_S",
        "return now - watch.since >= LEASE_S / 2",
        ("tests/core/test_leadership.py",),
    ),
    Mutant(
        "a-replaced-leader-is-believed",
        "a worker obeys what a leader of an older term says",
        "core/leadership.py",
        "return term is not None and term < newest",
        "return False",
        ("tests/agent/wire/test_lines.py",),
    ),
    Mutant(
        "a-refusal-proves-that-nobody-leads",
        "a worker whose leader is dead lets its trainers run on for ever, although another one may lead",
        "agent/wire/client.py",
        '"" if response.term else response.ends',
        "response.ends",
        ("tests/agent/wire/test_lines.py",),
    ),
    Mutant(
        "promises-in-doubt",
        "a leader that is not sure that it leads answers all the same",
        "http/peers/roles.py",
        "if not self._standing.may_promise(self._term):",
        "if False and self._standing.may_promise(self._term):",
        ("tests/http/peers/test_roles.py",),
    ),
    Mutant(
        "answers-in-doubt",
        "a leader that has become unsure while it worked on a request answers it all the same",
        "http/edge/edge.py",
        "if self._may_promise is not None and not self._may_promise():",
        "if self._may_promise is None and not self._may_promise:",
        ("tests/http/peers/test_roles.py",),
    ),
    # Publishing
    Mutant(
        "a-publication-is-lost",
        "a job completes, and what its owner wanted published is never tried",
        "orchestrator/publishing.py",
        "    if publish and transaction.tx.publication(job.id) is None:\n",
        "    if publish and transaction.tx.publication(job.id) is not None:\n",
        SIM,
    ),
    Mutant(
        "published-and-not-there",
        "a try that failed is told as done",
        "orchestrator/publishing.py",
        "            await _record(fleet, publication, error=error)\n        except Exception",
        '            await _record(fleet, publication, url="")\n        except Exception',
        SIM,
    ),
)
