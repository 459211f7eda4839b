"""The audit log and tokens on the command line."""

from simpletuner_fleet.cli.frame.errors import ExitCode
from tests.cli.conftest import Answer, FakeServer, Run


def test_audit_is_listed_and_verified(ask: Run, server: FakeServer) -> None:
    entry = {
        "id": 7,
        "at": "2026-11-15T00:00:00Z",
        "event_type": "worker.token_rotated",
        "actor": "admin",
        "ip": "10.0.0.7",
        "target_type": "worker",
        "target_id": "w_1",
        "details": {"a": "b"},
        "hash": "00",
    }
    server.on("GET", "/api/audit", {"entries": [entry], "total": 9})
    result = ask("audit", "list", "--event-type", "worker.token_rotated", "--since", "2h", "--limit", "1")
    assert "worker.token_rotated\tadmin\t10.0.0.7\tw_1\ta=b" in result.out
    query = server.seen[-1].query
    assert query["event_type"] == ["worker.token_rotated"]
    assert query["since"][0].endswith("Z")
    assert ask("audit", "list", "--since", "yesterday-ish").code == ExitCode.USAGE
    assert ask("audit", "list", "--security").code == ExitCode.OK
    assert server.seen[-1].query["event_type"] == ["security"]
    assert ask("audit", "list", "--security", "--event-type", "job.failed").code == ExitCode.USAGE
    server.on("GET", "/api/audit/stats", {"total": 9, "by_type": {"job.failed": 2, "job.submitted": 7}})
    assert [line.split() for line in ask("audit", "stats").out.splitlines()[1:]] == [
        ["job.submitted", "7"],
        ["job.failed", "2"],
    ]
    server.on("GET", "/api/audit/types", {"types": ["job.failed", "job.submitted"]})
    assert ask("audit", "types").out == "job.failed\njob.submitted\n"
    server.on("GET", "/api/audit/verify", {"valid": True, "checked": 9, "problems": []})
    assert ask("audit", "verify").out == "valid: 9 entries checked\n"
    server.on(
        "GET",
        "/api/audit/verify",
        {"valid": False, "checked": 9, "problems": [{"seq": 3, "what": "it was altered"}]},
    )
    broken = ask("audit", "verify")
    assert broken.code == ExitCode.FAILED
    assert "entry 3: it was altered" in broken.out


def test_tokens_are_made_listed_and_revoked(ask: Run, server: FakeServer) -> None:
    made = {"id": "t_1", "name": "ci", "token": "st_new", "permissions": ["queue.submit"]}
    server.on("POST", "/api/admin/tokens", Answer(201, made))
    server.on("GET", "/api/admin/tokens", {"tokens": [made]})
    server.on("DELETE", "/api/admin/tokens/t_1", {})
    result = ask("tokens", "create", "ci", "--permission", "queue.submit", "--expires", "90d")
    assert "TOKEN\tst_new" in result.out
    assert server.seen[-1].body == {"name": "ci", "permissions": ["queue.submit"], "expires_in_s": 7776000.0}
    assert ask("tokens", "list", "-o", "name").out == "t_1\n"
    assert ask("tokens", "revoke", "ci").code == 0
    assert ask("tokens", "revoke", "nobody").code == ExitCode.NOT_FOUND
