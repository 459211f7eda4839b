"""Declares the `simpletuner sign-in` commands and their options."""

from simpletuner_fleet.cli.commands.rows import Noun, OneOf, Verb, argument, repeated, switch
from simpletuner_fleet.languages import _
from simpletuner_fleet.settings import values

PROVIDER = argument("provider", metavar="NAME", help="Small letters, digits and '-'")


def rule(text: str) -> tuple[str, str]:
    """Reads ROLE=GROUP; a group may have further '=' in it."""
    role, between, group = text.partition("=")
    if not between or not role.strip() or not group.strip():
        raise ValueError(_("'%(text)s' is not of the form ROLE=GROUP", text=text))
    return role.strip(), group.strip()


def team_rule(text: str) -> tuple[str, str]:
    place, group = rule(text)
    team, _colon, role = place.rpartition(":")
    if not team or role not in ("lead", "member", "viewer"):
        raise ValueError(
            _(
                "'%(text)s' is not of the form TEAM:ROLE=GROUP, with the role lead, member or viewer",
                text=text,
            )
        )
    return place, group


SECRET = OneOf(
    (
        argument("--from-file", metavar="FILE", help="Read the client's secret from this file"),
        switch("--public", help="The client has no secret: PKCE alone protects it"),
    )
)
MORE = (
    argument("--title", may_be_empty=True, metavar="TEXT", help="The words on the button of the log-in page"),
    repeated(
        "--role",
        "ROLE=GROUP",
        "Whoever is in this group has this role; may be repeated, in place of those there were",
        read=rule,
    ),
    argument("--everybody", metavar="ROLE", help="The role of those who are in no group that is named"),
    repeated(
        "--team",
        "TEAM:ROLE=GROUP",
        "Whoever is in this group is lead, member or viewer of this team; may be repeated",
        read=team_rule,
    ),
    repeated("--scope", "NAME", "A scope that is asked for; may be repeated"),
    argument(
        "--groups-claim",
        may_be_empty=True,
        metavar="NAME",
        help="Where the groups stand, as groups or realm_access.roles",
    ),
    argument("--name-claim", may_be_empty=True, metavar="NAME", help="How a new user is called"),
    argument("--subject-claim", may_be_empty=True, metavar="NAME", help="Who somebody is (Entra: oid)"),
    argument(
        "--new-users",
        read=values.boolean,
        metavar="YES|NO",
        help="Whether users are made at their first log-in",
    ),
    argument(
        "--leeway", dest="leeway_s", read=values.seconds, metavar="TIME", help="By how much clocks may differ"
    ),
    repeated("--allow-host", "HOST", "A further host that the server may ask for it; may be repeated"),
)

SIGN_IN = Noun(
    "sign-in",
    "The OpenID providers that people log in with",
    "nouns.people.sign_in",
    (
        Verb("list", "List providers: those of the server's file, and those that were added"),
        Verb("get", "Show a provider, and the addresses to register there", (PROVIDER,)),
        Verb(
            "add",
            "Add a provider; the client's secret is read from standard input",
            (
                PROVIDER,
                argument(
                    "--issuer", required=True, metavar="URL", help="Exactly as the provider writes itself"
                ),
                argument(
                    "--client-id", required=True, metavar="ID", help="How the provider calls this server"
                ),
                SECRET,
                *MORE,
                switch("--enable", help="Switch it on at once, before it was tested"),
            ),
        ),
        Verb(
            "change",
            "Change a provider that was added; with another issuer its sessions end",
            (
                PROVIDER,
                argument("--issuer", metavar="URL", help="Exactly as the provider writes itself"),
                argument("--client-id", metavar="ID", help="How the provider calls this server"),
                SECRET,
                *MORE,
            ),
        ),
        Verb("test", "Ask a provider all that a log-in would, and tell what came of each check", (PROVIDER,)),
        Verb("enable", "Let people log in with a provider", (PROVIDER,)),
        Verb("disable", "Switch a provider off: its sessions end, and nobody logs in with it", (PROVIDER,)),
        Verb("delete", "Delete a provider that was added: its sessions end, its users stay", (PROVIDER,)),
    ),
)
