"""Shows what the user has used of each quota and what is left; to administrators, all quotas."""

from simpletuner_fleet.core.people.quotas import KIND_NAMES, QuotaAction, QuotaKind, QuotaScope
from simpletuner_fleet.http.api.admin.quotas import PERMISSION, list_quotas, own_quotas
from simpletuner_fleet.http.edge.routes import ANY_USER, Call, Reply, Route
from simpletuner_fleet.languages import N_
from simpletuner_fleet.web.frame.page import page, spoken

ACTION_NAMES = {
    QuotaAction.WAIT: N_("the job waits"),
    QuotaAction.REFUSE: N_("the job is refused"),
    QuotaAction.APPROVE: N_("the job needs an approval"),
    QuotaAction.WARN: N_("only a word of warning"),
}
SCOPE_NAMES = {
    QuotaScope.EACH: N_("each person"),
    QuotaScope.ALL: N_("all together"),
    QuotaScope.PERSON: N_("one person"),
    QuotaScope.TEAM: N_("one team"),
    QuotaScope.ROLE: N_("each person with a role"),
}


async def quotas(call: Call[None]) -> Reply:
    mine = await own_quotas(call)
    may_manage = call.principal.can(PERMISSION)
    everything = (await list_quotas(call)).quotas if may_manage else []
    with spoken(call):
        return page(
            call,
            "access/quotas.html",
            own=mine.quotas,
            unreadable=mine.unreadable,
            rows=everything,
            may_manage=may_manage,
            kinds={kind.value: KIND_NAMES[kind] for kind in QuotaKind},
            actions={action.value: name for action, name in ACTION_NAMES.items()},
            scopes={scope.value: name for scope, name in SCOPE_NAMES.items()},
        )


ROUTES = (Route("GET", "/quotas", quotas, ANY_USER, summary="Quotas"),)
