"""Says to people why a machine that tried to join was refused."""

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.languages import N_, _, current
from simpletuner_fleet.languages.details import detail_text

REFUSALS = {
    "token_rotated": N_("%(ip)s used a token that has been rotated."),
    "token_misshapen": N_("%(ip)s used a token that was truncated or mistyped."),
    "invalid_token": N_("%(ip)s used a token that belongs to no worker."),
    "unauthenticated": N_("%(ip)s sent no token."),
    "network_not_allowed": N_("%(ip)s is in a network that workers may not connect from."),
    "superseded": N_("%(ip)s used this worker's token, but another machine is already using it."),
}


def refusal_text(entry: AuditEntry) -> str:
    code, ip = str(entry.details.get("code", "")), entry.ip
    if code in REFUSALS:
        return _(REFUSALS[code], ip=ip)
    why = detail_text(current(), str(entry.details.get("why", "")))
    return _("%(ip)s was refused: %(why)s", ip=ip, why=why)
