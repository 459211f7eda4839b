"""A restore beside any of several servers gives back nothing that was taken away while another led."""

from pathlib import Path

import httpx2

from tests.e2e.ha.several import Orchestrator, Several


def knows(at: Orchestrator, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx2.get(f"{at.url}/api/whoami", headers=headers, trust_env=False, timeout=30).status_code


def command(several: Several, at: Orchestrator, *words: str) -> str:
    done = several.world.cli(
        "backup",
        *words,
        SIMPLETUNER_HOME=str(at.home),
        SIMPLETUNER_DATABASE_URL=several.database_url,
        SIMPLETUNER_STORAGE_URL=f"file://{several.storage}",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_journal_of_revocations_is_found_whichever_server_is_restored(several: Several) -> None:
    world = several.world
    first, second = several.pair()
    tokens = {
        name: world.post("/api/admin/tokens", {"name": name, "permissions": ["jobs.read"]})
        for name in ("kept", "revoked", "kept, too")
    }
    first.stop()
    second.becomes("leader")
    file = str(Path(world.folder) / "fleet.backup")
    command(several, second, "create", file)
    first.start()
    first.becomes("follower")
    second.stop()
    first.becomes("leader")
    world.url = first.url
    world.call("DELETE", f"/api/admin/tokens/{tokens['revoked']['id']}")
    first.stop()
    output = command(several, second, "restore", file, "--replace")
    assert "is not known" not in output
    second.start()
    second.becomes("leader")
    assert knows(second, tokens["kept"]["token"]) == 200
    assert knows(second, tokens["revoked"]["token"]) == 401, "it was revoked while another led"
    assert knows(second, tokens["kept, too"]["token"]) == 200
