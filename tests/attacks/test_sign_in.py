"""Attacks on the log-in with a provider: each is refused, and nobody is logged in by it."""

import hmac
import json
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from joserfc import jwt
from joserfc.jwk import ECKey

from simpletuner_fleet.core.people.sign_in.providers import Provider, ProxyIdentity
from tests.http.sign_in_kit import ROLES, Scene, edge_of, problem, scene
from tests.openid_provider import CLIENT, encoded, fields, new_key, openid_provider, send, unsigned
from tests.stop_watch import StopWatch

LOST, UNTRUSTED, DOWN = (403, "sign_in_lost"), (403, "not_vouched_for"), (502, "provider_unusable")


async def nobody_came_in(it: Scene) -> None:
    assert (await it.running.get("/api/admin/users"))["users"] == []


async def test_an_answer_is_good_once_and_in_the_browser_that_asked() -> None:
    async with scene() as it, it.browser() as victim, it.browser() as thief:
        back = await it.through_provider(await it.to_provider(victim))
        assert problem(await thief.get(back)) == LOST
        await it.to_provider(thief)
        assert problem(await thief.get(back)) == LOST
        await nobody_came_in(it)
        cookie = victim.cookies["simpletuner_sign_in"]
        assert (await victim.get(back)).status_code == 303
        assert "simpletuner_sign_in" not in victim.cookies
        victim.cookies.set("simpletuner_sign_in", cookie, domain="127.0.0.1")
        assert problem(await victim.get(back)) == LOST


async def test_a_code_of_another_log_in_does_not_fit() -> None:
    """The thief's own code in the victim's answer, and the victim's in the thief's: PKCE and the nonce tell."""
    async with scene() as it, it.browser() as victim, it.browser() as thief:
        stolen = await it.through_provider(await it.to_provider(victim))
        own = await it.through_provider(await it.to_provider(thief))
        code = parse_qs(urlsplit(stolen).query)["code"][0]
        state = parse_qs(urlsplit(own).query)["state"][0]
        answer = urlencode({"code": code, "state": state, "iss": it.provider.issuer})
        assert problem(await thief.get(f"/login/back/corp?{answer}")) == (403, "sign_in_failed")
        await nobody_came_in(it)


async def test_a_log_in_that_took_too_long_and_a_seal_that_was_forged_are_lost() -> None:
    async with scene() as it, it.browser() as browser:
        back = await it.through_provider(await it.to_provider(browser))
        body, seal = browser.cookies["simpletuner_sign_in"].split(".")
        for forged in (f"{body}.{seal[:-1]}", f"{body}x.{seal}", "", "."):
            browser.cookies.set("simpletuner_sign_in", forged, domain="127.0.0.1")
            assert problem(await browser.get(back)) == LOST
        browser.cookies.set("simpletuner_sign_in", f"{body}.{seal}", domain="127.0.0.1")
        it.running.clock.at += 601
        assert problem(await browser.get(back)) == LOST
        assert problem(await browser.get("/login/back/corp?code=x&state=y")) == LOST
        await nobody_came_in(it)


async def test_two_providers_are_not_mixed_up() -> None:
    async with scene() as it, it.browser() as browser:
        back = await it.through_provider(await it.to_provider(browser))
        asked = {name: values[0] for name, values in parse_qs(urlsplit(back).query).items()}
        for said in ({"iss": "http://127.0.0.1:1"}, {}):
            await it.to_provider(browser)
            back = await it.through_provider(await it.to_provider(browser))
            asked = {name: values[0] for name, values in parse_qs(urlsplit(back).query).items()}
            del asked["iss"]
            assert problem(await browser.get(f"/login/back/corp?{urlencode({**asked, **said})}")) == UNTRUSTED
        await nobody_came_in(it)


async def test_a_log_in_begun_at_one_provider_ends_at_no_other_and_shows_it_no_code() -> None:
    """The mix-up: a provider that means ill sends the browser on to an honest one, and hopes for the code."""
    for evil_names_itself in (True, False):
        with openid_provider(names_itself=evil_names_itself) as evil:
            also = Provider(
                id="evil", title="Evil", issuer=evil.issuer, client_id=CLIENT, client_secret="x", roles=ROLES
            )
            async with scene(more_providers=(also,)) as it, it.browser() as victim, it.browser() as thief:
                asked = fields(urlsplit(await it.to_provider(victim, at="evil")).query)
                corp = fields(urlsplit(await it.to_provider(thief)).query)
                honest = {**asked, "client_id": CLIENT, "redirect_uri": corp["redirect_uri"]}
                back = await it.through_provider(f"{it.provider.issuer}/authorize?{urlencode(honest)}")
                answer = fields(urlsplit(back).query)
                assert problem(await victim.get(back)) == LOST, "the state is the other's"
                for at, said in (("evil", answer), ("corp", {**answer, "iss": evil.issuer})):
                    asked = fields(urlsplit(await it.to_provider(victim, at=at)).query)
                    mixed = urlencode({**said, "state": asked["state"]})
                    assert problem(await victim.get(f"/login/back/{at}?{mixed}")) == UNTRUSTED
                assert "/token" not in evil.asked, "the honest provider's code was never shown to the other"
                await nobody_came_in(it)


async def test_where_one_is_led_after_the_log_in_is_here() -> None:
    async with scene() as it, it.browser() as browser:
        for away in (
            *("https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)"),
            *(
                "///evil.example",
                "\\\\evil.example",
                "/\t/evil.example",
                "/\n/evil.example",
                "https:evil.example",
            ),
            *("evil.example", "/x\r\nset-cookie: a=b", "\x01//evil.example", " //evil.example"),
        ):
            back = await it.log_in(browser, following=away)
            assert (back.status_code, back.headers["location"]) == (303, "/")


Bend = Callable[[Scene], None]


def claim(**changed: Any) -> Bend:
    def bend(it: Scene) -> None:
        it.provider.bend_claims = changed

    return bend


def token(make: Callable[[Scene, dict[str, Any]], str]) -> Bend:
    def bend(it: Scene) -> None:
        it.provider.make_token = lambda claims: make(it, claims)

    return bend


def signed_with_the_public_key(it: Scene, claims: dict[str, Any]) -> str:
    """By hand: the library refuses to make such a token."""
    signed = unsigned(claims, "HS256", it.provider.key.kid or "").rstrip(".")
    seal = hmac.digest(it.provider.key.as_pem(private=False), signed.encode(), "sha256")
    return f"{signed}.{encoded(seal)}"


def signed_with_a_key_of_ones_own(it: Scene, claims: dict[str, Any]) -> str:
    own = new_key()
    return jwt.encode({"alg": "ES256", "kid": it.provider.key.kid}, claims, own, ["ES256"])


def that_brings_its_key(it: Scene, claims: dict[str, Any]) -> str:
    own = new_key()
    header = {"alg": "ES256", "jwk": own.as_dict(private=False), "jku": "http://127.0.0.1:1/keys"}
    return jwt.encode(header, claims, own, ["ES256"])


def changed_after_signing(it: Scene, claims: dict[str, Any]) -> str:
    head, _, seal = it.provider.sign(claims).split(".")
    return ".".join((head, unsigned({**claims, "groups": ["ml-admins"]}).split(".")[1], seal))


def with_a_short_key(it: Scene, claims: dict[str, Any]) -> str:
    """By hand, too."""
    short = rsa.generate_private_key(65537, 1024)
    modulus = short.public_key().public_numbers().n.to_bytes(128)
    it.provider.more_keys.append({"kty": "RSA", "kid": "short", "e": "AQAB", "n": encoded(modulus)})
    signed = unsigned(claims, "RS256", "short").rstrip(".")
    return f"{signed}.{encoded(short.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def with_header(**header: Any) -> Callable[[Scene, dict[str, Any]], str]:
    """By hand, as the library would refuse to make some of them: signed with the right key."""

    def make(it: Scene, claims: dict[str, Any]) -> str:
        head = {"alg": "ES256", "kid": it.provider.key.kid, **header}
        parts = ".".join(encoded(json.dumps(one).encode()) for one in (head, claims))
        assert isinstance(it.provider.key, ECKey)
        der = it.provider.key.private_key.sign(parts.encode(), ec.ECDSA(hashes.SHA256()))  # type: ignore[union-attr]
        seal = b"".join(one.to_bytes(32) for one in decode_dss_signature(der))
        return f"{parts}.{encoded(seal)}"

    return make


UNTRUSTWORTHY: dict[str, Bend] = {
    "with a header that must be understood": token(with_header(crit=["exp"])),
    "whose text is not as it was signed": token(with_header(b64=False, crit=["b64"])),
    "with a signature of another kind than its key": token(with_header(alg="RS256")),
    "with a curve that is not offered": token(with_header(alg="ES256K")),
    "issued by another": claim(iss="http://127.0.0.1:1"),
    "issued by nearly the same": claim(iss="HTTP://127.0.0.1"),
    "for another client": claim(aud="another"),
    "for several and to another": claim(aud=["fleet", "another"], azp="another"),
    "for several and to nobody": claim(aud=["fleet", "another"]),
    "to another": claim(azp="another"),
    "expired": claim(exp=1_799_999_000),
    "without an end": claim(exp=None),
    "with an end that is no number": claim(exp="never"),
    "from the future": claim(iat=1_800_000_500),
    "not yet good": claim(nbf=1_800_000_500),
    "for another log-in": claim(nonce="another"),
    "for no log-in": claim(nonce=None),
    "about nobody": claim(sub=""),
    "about a number": claim(sub=5),
    "with groups that are none": claim(groups={"ml-admins": True}),
    "with no signature": token(lambda it, claims: unsigned(claims)),
    "with no signature, spelt otherwise": token(lambda it, claims: unsigned(claims, "nOnE")),
    "signed with the public key as a secret": token(signed_with_the_public_key),
    "signed with a key of one's own": token(signed_with_a_key_of_ones_own),
    "that brings its key": token(that_brings_its_key),
    "changed after signing": token(changed_after_signing),
    "signed with a short key": token(with_a_short_key),
    "that is none": token(lambda it, claims: "not a token"),
    "of enormous length": token(lambda it, claims: it.provider.sign({**claims, "x": "y" * 40_000})),
}


async def test_a_token_that_cannot_be_trusted_lets_nobody_in() -> None:
    async with scene() as it, it.browser() as browser:
        for name, bend in UNTRUSTWORTHY.items():
            it.provider.bend_claims, it.provider.make_token = {}, None
            bend(it)
            assert problem(await it.log_in(browser)) == UNTRUSTED, name
        await nobody_came_in(it)
        it.provider.bend_claims, it.provider.make_token = {}, lambda claims: with_header()(it, claims)
        assert (await it.log_in(browser)).status_code == 303, "made by hand and right"
        it.provider.bend_claims, it.provider.make_token = {"exp": 1_799_999_970, "iat": 1_800_000_030}, None
        assert (await it.log_in(browser)).status_code == 303, "clocks may differ by a little"


def sends(status: int = 200, body: bytes = b"{}", **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    return lambda to: send(to, status, body, **headers)


def drips(to: BaseHTTPRequestHandler) -> None:
    to.send_response(200)
    to.end_headers()
    for _ in range(100):
        to.wfile.write(b" ")
        to.wfile.flush()
        time.sleep(0.05)


DOCUMENT = "/.well-known/openid-configuration"


@pytest.mark.parametrize(
    "answer",
    [
        sends(body=b"x" * 2_000_000),
        sends(body=b"[" * 100_000),
        sends(body=b"\xff"),
        sends(302, Location="http://127.0.0.1:9/"),
        sends(500),
        lambda to: send(to, 200, b"{}", **{"Content-Encoding": "gzip"}),
        drips,
    ],
    ids=["huge", "deep", "no text", "redirect", "error", "packed", "slow"],
)
async def test_a_provider_that_misbehaves_costs_little_and_says_so(
    answer: Callable[[BaseHTTPRequestHandler], None],
) -> None:
    async with scene(deadline_s=0.5) as it, it.browser() as browser:
        it.provider.answers[DOCUMENT] = answer
        with StopWatch() as watch:
            assert problem(await browser.get("/login/with/corp")) == DOWN
            asked = len(it.provider.asked)
            assert problem(await browser.get("/login/with/corp")) == DOWN
            assert len(it.provider.asked) == asked, "it is not asked again at once"
            assert watch.elapsed_s < 3


async def test_a_document_cannot_send_our_requests_elsewhere() -> None:
    with openid_provider() as inside:
        for bent in (
            {"jwks_uri": f"{inside.issuer}/keys"},
            {"token_endpoint": f"{inside.issuer}/token"},
            {"jwks_uri": "http://169.254.169.254/latest/meta-data/"},
            {"jwks_uri": "https://internal.example/keys"},
            {"jwks_uri": "file:///etc/passwd"},
            {"issuer": "http://another.example"},
            {"issuer": None},
            {"id_token_signing_alg_values_supported": ["none", "HS256"]},
            {"code_challenge_methods_supported": ["plain"]},
            {"authorization_endpoint": "javascript:alert(1)"},
            {"authorization_endpoint": "http://evil.example/authorize"},
        ):
            async with scene() as it, it.browser() as browser:
                it.provider.bend_document = bent
                assert problem(await browser.get("/login/with/corp")) == DOWN, bent
        assert inside.asked == []


async def test_userinfo_about_somebody_else_is_not_believed() -> None:
    async with scene() as it, it.browser() as browser:
        it.provider.groups_in_userinfo = True
        it.provider.answers["/me"] = sends(
            body=json.dumps({"sub": "s-root", "groups": ["ml-admins"]}).encode()
        )
        assert problem(await it.log_in(browser)) == UNTRUSTED
        await nobody_came_in(it)


async def test_words_of_strangers_are_not_repeated_by_our_pages() -> None:
    async with scene() as it, it.browser() as browser:
        state = parse_qs(urlsplit(await it.to_provider(browser)).query)["state"][0]
        said = {"error": "<b>call 0900</b>", "error_description": "call 0900", "state": state}
        page = await browser.get(
            f"/login/back/corp?{urlencode({**said, 'iss': it.provider.issuer})}",
            headers={"Accept": "text/html"},
        )
        assert page.status_code == 403
        assert "0900" not in page.text


def by_proxy(**headers: str) -> dict[str, str]:
    return {f"X-Auth-Request-{name.title()}": value for name, value in headers.items()}


async def test_only_a_trusted_proxy_says_who_somebody_is() -> None:
    proxy = ProxyIdentity(
        title="Gate",
        user_header="x-auth-request-user",
        groups_header="x-auth-request-groups",
        roles=ROLES,
    )
    root = by_proxy(user="root", groups="ml-admins")
    for trusted in ("", "10.0.0.0/8"):
        async with scene(edge_of(proxy, trusted), proxy=proxy) as it, it.browser() as stranger:
            for claimed in (
                {},
                {"X-Forwarded-For": "10.0.0.1"},
                {"Forwarded": "for=10.0.0.1"},
                {"X-Real-IP": "10.0.0.1"},
            ):
                answer = await stranger.get("/login/with/proxy", headers={**root, **claimed})
                assert problem(answer) == UNTRUSTED, "who one says one is does not make one the proxy"
            assert "Gate" not in (await stranger.get("/login", headers=root)).text
            assert problem(await stranger.get("/login/with/proxy", headers=root)) == UNTRUSTED
            await nobody_came_in(it)
    async with scene(edge_of(proxy, "127.0.0.0/8"), proxy=proxy) as it, it.browser() as browser:
        assert "Gate" in (await browser.get("/login", headers=root)).text
        assert "Gate" not in (await browser.get("/login")).text
        ann = by_proxy(user="ann", groups="staff, ml")
        back = await browser.get("/login/with/proxy?next=/jobs", headers=ann)
        assert (back.status_code, back.headers["location"]) == (303, "/jobs")
        me = await browser.get("/api/me", headers=ann)
        assert (me.json()["name"], me.json()["role"]) == ("ann", "member")
        for other in (root, {}):
            assert problem(await browser.get("/api/me", headers=other)) == (401, "session_ended")
        assert problem(await browser.get("/login/with/proxy")) == UNTRUSTED
        lost = by_proxy(user="ann", groups="nothing")
        assert problem(await browser.get("/login/with/proxy", headers=lost)) == (403, "no_role")
        assert problem(await browser.get("/api/me", headers=ann)) == (401, "session_ended")
