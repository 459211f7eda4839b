"""A small, strict OpenID provider: a real HTTP server that signs with real keys, and lies where a test asks it to."""

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode

from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

from tests.quiet_server import QuietServer

CLIENT, SECRET = "fleet", "s3cret/with:signs"
JSON = "application/json"


class Turn:
    """One walk through the provider: who asked for what, as the code stands for it."""

    def __init__(self, asked: dict[str, str], subject: str, sid: str) -> None:
        self.asked, self.subject, self.sid, self.used = asked, subject, sid, False


class TestProvider:
    """What it says may be bent: each knob is a lie that a careful client must notice."""

    __test__ = False

    def __init__(self, now: Callable[[], float] = time.time, names_itself: bool = True) -> None:
        self.now, self.names_itself = now, names_itself
        self.people: dict[str, dict[str, Any]] = {"s-ada": {"preferred_username": "ada", "groups": ["ml"]}}
        self.person = "s-ada"
        self.redirect_uris: set[str] = set()
        self.turns: dict[str, Turn] = {}
        self.asked: list[str] = []
        self.key = new_key()
        self.published = [self.key]
        self.more_keys: list[dict[str, Any]] = []
        self.answers: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {}
        """By path: what is sent instead of the usual."""
        self.bend_document: dict[str, Any] = {}
        self.bend_claims: dict[str, Any] = {}
        self.make_token: Callable[[dict[str, Any]], str] | None = None
        self.logouts: list[dict[str, str]] = []
        self.groups_in_userinfo = False
        self.form = False
        """Ask the person with a page and a button, instead of at once."""
        self._server = QuietServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.issuer = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def rotate(self, keep_old: bool = False) -> None:
        self.key = new_key()
        self.published = [*self.published, self.key] if keep_old else [self.key]

    def document(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "userinfo_endpoint": f"{self.issuer}/me",
            "end_session_endpoint": f"{self.issuer}/end",
            "id_token_signing_alg_values_supported": ["RS256", "ES256", "none", "HS256"],
            "code_challenge_methods_supported": ["S256"],
            "scopes_supported": ["openid", "profile", "email", "groups"],
            "authorization_response_iss_parameter_supported": self.names_itself,
            **self.bend_document,
        }

    def sign(self, claims: dict[str, Any], **header: str) -> str:
        head = {
            "alg": "RS256" if isinstance(self.key, RSAKey) else "ES256",
            "kid": str(self.key.kid),
            **header,
        }
        return jwt.encode(head, claims, self.key, algorithms=[head["alg"]])

    def claims(self, turn: Turn) -> dict[str, Any]:
        about = dict(self.people[turn.subject])
        if self.groups_in_userinfo:
            about.pop("groups", None)
        now = int(self.now())
        return {
            "iss": self.issuer,
            "aud": CLIENT,
            "sub": turn.subject,
            "iat": now,
            "exp": now + 300,
            "nonce": turn.asked["nonce"],
            "sid": turn.sid,
            **about,
            **self.bend_claims,
        }

    def logout_token(self, **changed: Any) -> str:
        now = int(self.now())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT,
            "iat": now,
            "exp": now + 120,
            "jti": secrets.token_hex(8),
            "sub": self.person,
            "events": {"http://schemas.openid.net/event/backchannel-logout": {}},
            **changed,
        }
        return self.sign(
            {name: value for name, value in claims.items() if value is not None}, typ="logout+jwt"
        )

    def authorize(self, asked: dict[str, str]) -> str:
        """Returns where the browser goes with the code."""
        assert asked["client_id"] == CLIENT, asked
        assert asked["redirect_uri"] in self.redirect_uris, asked["redirect_uri"]
        assert (asked["response_type"], asked["code_challenge_method"]) == ("code", "S256")
        assert "openid" in asked["scope"].split()
        assert [len(asked[name]) for name in ("code_challenge", "state", "nonce")] == [43, 43, 43]
        code = secrets.token_urlsafe(16)
        self.turns[code] = Turn(asked, self.person, secrets.token_hex(4))
        itself = {"iss": self.issuer} if self.names_itself else {}
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state'], **itself})}"

    def token(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        named = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if (unquote(named[0]), unquote(named[2])) != (CLIENT, SECRET):
            return 401, {"error": "invalid_client"}
        turn = self.turns.get(form.get("code", ""))
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = encoded(digest)
        fits = turn and not turn.used and turn.asked["redirect_uri"] == form.get("redirect_uri")
        if not turn or not fits or turn.asked["code_challenge"] != challenge:
            return 400, {"error": "invalid_grant"}
        turn.used = True
        id_token = (self.make_token or self.sign)(self.claims(turn))
        return 200, {"id_token": id_token, "access_token": f"of {turn.subject}", "token_type": "Bearer"}

    def get(self, path: str, asked: dict[str, str], to: BaseHTTPRequestHandler) -> None:
        match path:
            case "/.well-known/openid-configuration":
                tell(to, 200, self.document())
            case "/keys":
                listed = [key.as_dict(private=False) for key in self.published]
                tell(to, 200, {"keys": [*listed, *self.more_keys]})
            case "/authorize" if asked.get("prompt") == "none":
                known = asked["client_id"] == CLIENT and asked["redirect_uri"] in self.redirect_uris
                back = f"{asked['redirect_uri']}?{urlencode({'error': 'login_required', 'state': asked['state']})}"
                send(to, 302, b"", Location=back) if known else send(to, 400, b"unknown", "text/plain")
            case "/authorize" if self.form and "yes" not in asked:
                page = f'<h1>Test provider</h1><a id="yes" href="{to.path}&yes=1">Go on</a>'
                send(to, 200, page.encode(), "text/html")
            case "/authorize":
                send(to, 302, b"", Location=self.authorize(asked))
            case "/me":
                subject = to.headers.get("Authorization", "").removeprefix("Bearer of ")
                tell(to, 200, {"sub": subject, **self.people[subject]})
            case "/end":
                self.logouts.append(asked)
                send(to, 302, b"", Location=asked["post_logout_redirect_uri"])
            case _:
                tell(to, 404, {})

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path, _, query = self.path.partition("?")
                provider.asked.append(path)
                if path in provider.answers:
                    provider.answers[path](self)
                else:
                    provider.get(path, fields(query), self)

            def do_POST(self) -> None:
                provider.asked.append(self.path)
                form = fields(self.rfile.read(int(self.headers["Content-Length"])).decode())
                if self.path in provider.answers:
                    provider.answers[self.path](self)
                else:
                    tell(self, *provider.token(form, self.headers.get("Authorization", "")))

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler


def fields(text: str) -> dict[str, str]:
    return {name: values[-1] for name, values in parse_qs(text).items()}


def tell(to: BaseHTTPRequestHandler, status: int, document: dict[str, Any]) -> None:
    send(to, status, json.dumps(document).encode())


def send(to: BaseHTTPRequestHandler, status: int, body: bytes, kind: str = JSON, **headers: str) -> None:
    to.send_response(status)
    for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
        to.send_header(name, value)
    to.end_headers()
    to.wfile.write(body)


def new_key(kind: str = "EC") -> RSAKey | ECKey:
    kid = secrets.token_hex(4)
    if kind == "RSA":
        return RSAKey.generate_key(2048, {"kid": kid, "use": "sig"})
    return ECKey.generate_key("P-256", {"kid": kid, "use": "sig"})


@contextmanager
def openid_provider(
    now: Callable[[], float] = time.time, names_itself: bool = True
) -> Iterator[TestProvider]:
    provider = TestProvider(now, names_itself)
    try:
        yield provider
    finally:
        provider.stop()


def unsigned(claims: dict[str, Any], alg: str = "none", kid: str = "x") -> str:
    parts = (json.dumps(part).encode() for part in ({"alg": alg, "kid": kid}, claims))
    return ".".join(map(encoded, parts)) + "."


def encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
