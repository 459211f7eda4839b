"""Somebody at a browser that its user has left open, or with a cookie that was copied from it."""

from simpletuner_fleet.core.people.accounts import FRESH_LOGIN_S, SESSION_IDLE_S, SESSION_LIFE_S
from tests.attacks.people import PASSWORD, people


async def test_every_session_is_listed_and_can_be_ended_from_another() -> None:
    async with people() as here:
        mine, copied = await here.log_in("alice", "member"), await here.log_in("alice", "member")
        bob = await here.log_in("bob", "member")
        listed = (await mine.get("/api/me/sessions")).json()["sessions"]
        assert [one["current"] for one in listed].count(True) == 1
        assert len(listed) == 2
        other = next(one["id"] for one in listed if not one["current"])
        assert (await bob.delete(f"/api/me/sessions/{other}")).status_code == 404, "nobody ends another's"
        assert (await mine.delete(f"/api/me/sessions/{other}")).status_code == 200
        assert (await copied.get("/api/me")).status_code == 401, "at once"
        assert (await mine.get("/api/me")).status_code == 200
        entries = (await here.running.get("/api/audit", event_type="user.logout"))["entries"]
        assert entries[0]["details"]["session"] == other


async def test_what_outlasts_a_session_needs_a_fresh_log_in() -> None:
    async with people() as here:
        boss = await here.log_in("boss", "admin")
        acts = (
            ("POST", "/api/admin/tokens", {"name": "t", "permissions": ["jobs.read"]}),
            ("POST", "/api/admin/users", {"name": "eve", "role": "admin"}),
            ("PUT", "/api/secrets/hf", {"value": "hf_x"}),
            ("POST", "/api/admin/workers", {"name": "rogue"}),
            ("POST", f"/api/admin/workers/{(await here.running.create_worker())['worker_id']}/token", None),
        )
        here.running.clock.at += FRESH_LOGIN_S + 1
        for method, path, body in acts:
            refused = await boss.request(method, path, json=body)
            assert (refused.status_code, refused.json()["code"]) == (403, "login_not_fresh"), path
        assert (await boss.get("/api/queue")).status_code == 200, "all else goes on"
        again = await here.log_in("boss", "admin")
        made = await again.request(*acts[0][:2], json=acts[0][2])
        assert made.status_code == 201, made.text


async def test_a_session_ends_when_nobody_uses_it_and_in_any_case_after_a_while() -> None:
    async with people() as here:
        idle = await here.log_in("alice", "member")
        here.running.clock.at += SESSION_IDLE_S + 1
        assert (await idle.get("/api/me")).status_code == 401
        busy = await here.log_in("alice", "member")
        for _ in range(int(SESSION_LIFE_S / 86_400) - 1):
            here.running.clock.at += 86_400
            assert (await busy.get("/api/me")).status_code == 200
        here.running.clock.at += 86_401
        assert (await busy.get("/api/me")).status_code == 401


async def test_logging_in_again_ends_what_the_same_browser_had_before() -> None:
    async with people() as here:
        await here.log_in("bob", "member")
        elsewhere = await here.log_in("alice", "member")
        browser = await here.log_in("alice", "member")
        for name in ("alice", "bob"):
            async with here.copy_of(browser) as copied:
                assert (await copied.get("/api/me")).status_code == 200
                answer = await browser.post("/api/login", json={"name": name, "password": PASSWORD})
                assert answer.status_code == 200
                assert (await copied.get("/api/me")).status_code == 401, "at once"
        assert (await browser.get("/api/me")).json()["name"] == "bob"
        left = (await elsewhere.get("/api/me/sessions")).json()["sessions"]
        assert [one["current"] for one in left] == [True], "in the other browser alice goes on"
