"""Finds out how to reach a cluster and with which credentials.

It uses the pod's own service account, a kubeconfig, or an address and a token.
"""

import base64
import binascii
import os
import ssl
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.errors import Invalid

ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes puts a pod's own token, and renews it."""
SECRET = "$.secret"


class ClusterAccess(Struct, frozen=True, kw_only=True):
    url: str
    tls: ssl.SSLContext
    namespace: str = ""
    """Where nothing else is said; empty: not known."""
    token: str = ""
    token_file: Path | None = None
    """Read again for each call: such a token is replaced while it is in use."""
    server_name: str = ""
    """The name in the cluster's certificate, where it is not the one in the address."""

    def headers(self) -> dict[str, str]:
        token = self.token_file.read_text("ascii").strip() if self.token_file else self.token
        return {"Authorization": f"Bearer {token}"} if token else {}


class _Cluster(Struct, frozen=True, rename="kebab"):
    server: str
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""


class _User(Struct, frozen=True, rename="kebab"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""


class _Context(Struct, frozen=True):
    cluster: str
    user: str
    namespace: str = ""


class _NamedCluster(Struct, frozen=True):
    name: str
    cluster: _Cluster


class _NamedUser(Struct, frozen=True):
    name: str
    user: _User


class _NamedContext(Struct, frozen=True):
    name: str
    context: _Context


class _Kubeconfig(Struct, frozen=True, rename="kebab"):
    current_context: str
    clusters: list[_NamedCluster]
    users: list[_NamedUser]
    contexts: list[_NamedContext]


def access_of(
    key: str | None,
    url: str,
    authorities: str,
    environ: Mapping[str, str] = os.environ,
    account: Path = ACCOUNT_FOLDER,
) -> ClusterAccess:
    """Returns how to reach the cluster.

    `key` is the pool's secret, if it has one; `url` and `authorities` come from the pool's settings.
    """
    if key is None:
        return _own_account(url, authorities, environ, account)
    if url:
        return ClusterAccess(url=_checked(url), tls=_trusting(authorities), token=_plain_token(key))
    return _from_kubeconfig(key)


def _own_account(url: str, authorities: str, environ: Mapping[str, str], account: Path) -> ClusterAccess:
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    token_file = account / "token"
    if not token_file.is_file() or not (host or url):
        raise Invalid(
            "This server runs in no pod with a service account, and the pool names no secret.",
            path=SECRET,
            next_step="Store what this prints: kubectl config view --raw --flatten --minify -o json",
        )
    namespace_file = account / "namespace"
    return ClusterAccess(
        url=_checked(url or f"https://{f'[{host}]' if ':' in host else host}:{port}"),
        tls=_trusting(authorities or (account / "ca.crt").read_text("ascii")),
        namespace=namespace_file.read_text("utf-8").strip() if namespace_file.is_file() else "",
        token_file=token_file,
    )


def _from_kubeconfig(text: str) -> ClusterAccess:
    try:
        config = msgspec.json.decode(text, type=_Kubeconfig)
        context = next(one.context for one in config.contexts if one.name == config.current_context)
        cluster = next(one.cluster for one in config.clusters if one.name == context.cluster)
        user = next(one.user for one in config.users if one.name == context.user)
    except (msgspec.MsgspecError, UnicodeError, StopIteration):
        raise Invalid(
            "The pool's secret is no kubeconfig in JSON, and its settings name no 'api' for which it could be a token.",
            path=SECRET,
            next_step="Store what this prints: kubectl config view --raw --flatten --minify -o json",
        ) from None
    if cluster.insecure_skip_tls_verify:
        raise Invalid(
            "The kubeconfig says that the cluster's certificate is not to be verified.",
            path=SECRET,
            next_step="Name the authority that signed it: certificate-authority-data.",
        )
    if not user.token and not (user.client_certificate_data and user.client_key_data):
        raise Invalid(
            "The kubeconfig holds neither a token nor a client certificate.",
            path=SECRET,
            next_step="Use a service account's token: no program is run here to get one.",
        )
    tls = _trusting(_decoded(cluster.certificate_authority_data))
    if user.client_certificate_data and user.client_key_data:
        _present(tls, _decoded(user.client_certificate_data), _decoded(user.client_key_data))
    return ClusterAccess(
        url=_checked(cluster.server),
        tls=tls,
        namespace=context.namespace,
        token=_plain_token(user.token) if user.token else "",
        server_name=cluster.tls_server_name,
    )


def _checked(url: str) -> str:
    if not url.startswith("https://") or any(char.isspace() for char in url):
        raise Invalid("The cluster's address must begin with https://.", path="$.settings")
    return url.rstrip("/")


def _plain_token(key: str) -> str:
    token = key.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise Invalid("The pool's secret is no token: it holds signs that no token has.", path=SECRET)
    return token


def _decoded(data: str) -> str:
    try:
        return base64.b64decode(data, validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        raise Invalid("The kubeconfig holds a certificate that is no base64.", path=SECRET) from None


def _trusting(authorities: str) -> ssl.SSLContext:
    """Returns a TLS context that trusts only these authorities or, without any, those this machine trusts."""
    try:
        return ssl.create_default_context(cadata=authorities or None)
    except (ssl.SSLError, ValueError):
        raise Invalid(
            "The cluster's certificate authority is no certificate in PEM.", path="$.settings"
        ) from None


def _present(tls: ssl.SSLContext, certificate: str, key: str) -> None:
    """Loads the client certificate and its key into the TLS context.

    TLS reads them only from files, so they are written to one without a name, which is gone when it is closed.
    """
    with os.fdopen(os.memfd_create("client"), "w+", encoding="ascii") as file:
        file.write(f"{certificate}\n{key}\n")
        file.flush()
        try:
            tls.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        except (ssl.SSLError, OSError):
            raise Invalid(
                "The kubeconfig's client certificate and key do not belong together.", path=SECRET
            ) from None
