"""The file with the providers: what it must say, and what is said of one that cannot be used."""

from pathlib import Path

import pytest

from simpletuner_fleet.cli.frame.errors import CliError
from simpletuner_fleet.cli.programs.sign_in_file import read_sign_in_file
from simpletuner_fleet.core.people.accounts import Role
from simpletuner_fleet.core.people.scim.resources import ScimSource, SubjectSource
from simpletuner_fleet.orchestrator.sign_in.ways import SignInSettings

WHOLE = """
[providers.corp]
issuer = "https://id.example.org"
client_id = "fleet"
client_secret_file = "{folder}/secret"
hosts = ["Keys.Example.org"]
roles = {{ admin = ["root"], everybody = "viewer" }}

[providers.lab]
title = "The lab"
issuer = "http://localhost:9000"
client_id = "fleet"
client_secret_env = "LAB_SECRET"
roles = {{ member = ["ml"] }}

[ci.github]
issuer = "https://ci.example"
audience = "fleet"
[[ci.github.rules]]
claims = {{ repository = "org/*" }}
user = "ci"
permissions = ["queue.submit"]

[ldap.house]
url = "ldap://ldap.example.org"
base = "dc=example,dc=org"
bind_dn = "cn=reader"
bind_password_file = "{folder}/secret"
roles = {{ member = ["ml"] }}

[scim]
provider = "house"
subject = "userName"

[proxy]
user_header = "X-User"
roles = {{ member = ["ml"] }}
"""


def test_several_providers_and_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("hush\n")
    monkeypatch.setenv("LAB_SECRET", "quiet")
    file = tmp_path / "sign-in.toml"
    file.write_text(WHOLE.format(folder=tmp_path))
    read = read_sign_in_file(str(file), ["10.0.0.0/8"])
    corp, lab = read.providers
    assert (corp.id, corp.title, corp.client_secret, corp.hosts) == (
        "corp",
        "corp",
        "hush",
        ("keys.example.org",),
    )
    assert (lab.title, lab.client_secret) == ("The lab", "quiet")
    assert corp.roles.role_for(frozenset()) is Role.VIEWER
    assert read.ci[0].rules[0].claims == {"repository": "org/*"}
    [house] = read.directories
    assert (house.host, house.port, house.tls_from_the_start, house.plain) == (
        "ldap.example.org",
        389,
        False,
        False,
    )
    assert (house.bind_password, house.issuer) == ("hush", "ldap:house")
    assert read.scim == ScimSource(provider="house", subject=SubjectSource.USER_NAME)
    assert read.proxy is not None
    assert read.proxy.user_header == "x-user"
    with pytest.raises(CliError, match="cannot be used") as refused:
        read_sign_in_file(str(file))
    assert "--trusted-proxies" in refused.value.trouble.why


def test_without_a_file_there_is_no_provider() -> None:
    assert read_sign_in_file(None) == SignInSettings()


LDAP = "[ldap.x]\nurl = 'ldap://id'\nbase = 'dc=x'\nroles = {everybody = 'viewer'}\n"
CI = "[ci.x]\nissuer = 'https://id'\naudience = 'x'\n"
GOOD = 'issuer = "https://id"\nclient_id = "x"\nroles = {everybody = "viewer"}\n'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[providers.corp", "table declaration"),
        ("[providers.corp]\nissuer = 'https://id'", "client_id"),
        (f"[providers.corp]\n{GOOD}isuer = 'x'", "isuer"),
        (f"[providers.'Corp/x']\n{GOOD}", "Corp/x"),
        (f"[providers.proxy]\n{GOOD}", "proxy"),
        (f"[providers.corp]\n{GOOD.replace('https', 'http')}", "https"),
        (f"[providers.corp]\n{GOOD}scopes = ['email']", "openid"),
        ("[providers.corp]\nissuer = 'https://id'\nclient_id = 'x'", "role"),
        (f"[providers.corp]\n{GOOD}client_secret_file = '/none'", "/none"),
        (f"[providers.corp]\n{GOOD}client_secret_env = 'NOT_SET_HERE'", "NOT_SET_HERE"),
        (f"[providers.a]\n{GOOD}[providers.b]\n{GOOD}", "same issuer"),
        ("[proxy]\nuser_header = 'Cookie'\nroles = {member = ['a']}", "headers of its own"),
        ("[proxy]\nuser_header = 'X-User'", "role"),
        (f"[scim]\nprovider = 'other'\n[providers.corp]\n{GOOD}", "other"),
        ("[ldap.x]\nurl = 'https://id'\nbase = 'dc=x'", "ldaps://"),
        ("[ldap.x]\nurl = 'ldap://id:99999'\nbase = 'dc=x'", "ldaps://"),
        ("[ldap.x]\nurl = 'ldap://id'\nbase = 'dc=x'", "role"),
        (f"{LDAP}start_tls = false", "plain"),
        (f"{LDAP}user_filter = '(uid=ada)'", "{name}"),
        (f"{LDAP}user_filter = '(uid={{name}}'", "bracket"),
        (f"{LDAP}group_filter = '(member={{who}})'", "{who}"),
        (f"{LDAP}bind_password_env = 'NOT_SET_HERE'", "NOT_SET_HERE"),
        (f"{CI}rules = [{{claims = {{}}, user = 'ci', permissions = ['jobs.read']}}]", "claims"),
        (f"{CI}rules = [{{claims = {{sub = 'x'}}, user = 'ci', permissions = ['job.read']}}]", "permission"),
    ],
)
def test_what_cannot_be_used_is_told(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "sign-in.toml"
    file.write_text(text)
    with pytest.raises(CliError) as refused:
        read_sign_in_file(str(file), ["10.0.0.0/8"])
    assert str(file) in refused.value.trouble.what
    assert why in refused.value.trouble.why
