"""A provider that is added, changed and taken away at one server is so at the other, also after a change of leader."""

from typing import Any

import httpx2

from tests.e2e.ha.several import Orchestrator, Several
from tests.openid_provider import CLIENT, SECRET, openid_provider

AT = "/api/admin/sign-in/providers"


def ways(at: Orchestrator) -> bool:
    with httpx2.Client(base_url=at.url) as browser:
        return "/login/with/corp" in browser.get("/login", headers={"accept": "text/html"}).text


def log_in(at: Orchestrator) -> httpx2.Response:
    """A browser that has only ever heard of this server."""
    with httpx2.Client(base_url=at.url) as browser, httpx2.Client() as anywhere:
        there = browser.get("/login/with/corp", params={"next": "/jobs"})
        assert there.status_code == 303, there.text
        back = anywhere.get(there.headers["location"])
        return browser.get(back.headers["location"], headers={"accept": "application/json"})


def test_a_provider_is_the_same_at_every_server(several: Several) -> None:
    several.world.settings["SIMPLETUNER_NOTIFY_NETWORKS"] = "127.0.0.0/8"
    leader, follower = several.pair()
    with openid_provider() as provider:
        provider.redirect_uris |= {f"{one.url}/login/back/corp" for one in (leader, follower)}
        body: dict[str, Any] = {
            "id": "corp",
            "issuer": provider.issuer,
            "client_id": CLIENT,
            "client_secret": SECRET,
            "roles": {"member": ["ml"]},
            "enabled": True,
        }
        assert follower.call("POST", AT, body).status_code == 201
        for one in (leader, follower):
            assert ways(one)
            assert log_in(one).status_code == 303
        assert follower.call("PATCH", f"{AT}/corp", {"client_secret": "another"}).is_success
        assert [log_in(one).status_code for one in (leader, follower)] == [403, 403]
        assert leader.call("PATCH", f"{AT}/corp", {"client_secret": SECRET}).is_success
        assert [log_in(one).status_code for one in (leader, follower)] == [303, 303]
        leader.stop()
        follower.becomes("leader", within_s=10)
        assert log_in(follower).status_code == 303, "the new leader opens the secret with the common key"
        leader.start()
        leader.becomes("follower")
        assert leader.call("DELETE", f"{AT}/corp").is_success
        assert [ways(one) for one in (leader, follower)] == [False, False]
