"""Machines that pools bring, and the money that they cost."""

from devtools.mutants.table.mutant import Mutant

RULES = ("tests/core/provisioning", "tests/orchestrator/machines")
DAYS = (*RULES, "tests/sim/test_machine_days.py")

TAKEN_AWAY = ("tests/core/workers/test_interruption.py", "tests/core/provisioning/test_useless.py")

MACHINES = (
    Mutant(
        "taken-away-is-charged",
        "a job pays for a spot machine that went without a word",
        "core/jobs/lifecycle.py",
        "    if taken_away and (attempt.saved_something or job.interruptions < INTERRUPTIONS_UNCHARGED):",
        "    if taken_away and attempt.saved_something:",
        TAKEN_AWAY,
    ),
    Mutant(
        "spot-for-ever",
        "a job whose machines are taken away again and again is brought the next spot machine",
        "core/provisioning/offers.py",
        "    had_enough = interruptions >= request.spot_tries",
        "    had_enough = False",
        TAKEN_AWAY,
    ),
    Mutant(
        "put-off",
        "a machine's end is put off by a later notice",
        "core/workers/interruption.py",
        "    if deadline < known.deadline - 1.0:",
        "    if abs(deadline - known.deadline) > 1.0:",
        TAKEN_AWAY,
    ),
    Mutant(
        "asked-is-given-up-at-once",
        "a machine that the list does not show yet is given up, and a second one brought",
        "core/provisioning/upkeep.py",
        "    if look.at - since < look.settle_s:\n        return missing",
        "    if look.at < since:\n        return missing",
        DAYS,
    ),
    Mutant(
        "unknown-is-idle",
        "a machine whose worker is not heard counts as idle",
        "core/provisioning/upkeep.py",
        "    idle = worker.connected and not worker.busy",
        "    idle = not worker.busy",
        RULES,
    ),
    Mutant(
        "destroyed-costs-nothing",
        "a machine that is being destroyed makes room for the next one before it is gone",
        "core/provisioning/money.py",
        "    live = [machine for machine in known if machine.is_live]",
        "    live = [machine for machine in known if machine.destroying_at is None and machine.is_live]",
        DAYS,
    ),
    Mutant(
        "others-are-strays",
        "machines of others are destroyed",
        "core/provisioning/upkeep.py",
        "        if not listed.name.startswith(beginning) or listed.provider_id in ids:",
        "        if listed.provider_id in ids:",
        DAYS,
    ),
    Mutant(
        "token-for-many",
        "a second machine joins with the token of the first",
        "orchestrator/machines/joining.py",
        "        if machine.home and machine.home != home:",
        "        if not home:",
        RULES,
    ),
    Mutant(
        "no-offers-no-look",
        "a provider whose offers cannot be had is not looked at, and its machines are not looked after",
        "orchestrator/machines/rounds.py",
        "    except (ProviderRefused, ProviderUnsure) as error:\n        trouble = str(error)",
        "    except ValueError as error:\n        trouble = str(error)",
        RULES,
    ),
    Mutant(
        "pools-are-told-to-everybody",
        "events about pools go to everybody who may read jobs",
        "http/api/service/events.py",
        '    "pool": "machines.read",\n',
        '    "pool": "jobs.read",\n',
        RULES,
    ),
    Mutant(
        "ended-unjoined-is-no-failure",
        "a machine that ends before it joins is made again at once, without end",
        "core/provisioning/growth.py",
        "machine.why in (Why.VANISHED, Why.LEFT)",
        "machine.why == Why.VANISHED",
        RULES,
    ),
    Mutant(
        "half-a-list-is-whole",
        "a list of Kubernetes that breaks off between two pages is taken for all there is",
        "providers/kubernetes/provider.py",
        "                if error.status != GONE or not following:\n                    raise",
        "                if following:\n                    return items\n                raise",
        ("tests/providers/kubernetes",),
    ),
    Mutant(
        "anybody-refuses-for-a-vendor",
        "a proxy's answer counts as the vendor's word that no machine was made",
        "providers/vendor_http.py",
        "        if answer.status < 500 and self._said(answer) is not None:",
        "        if answer.status < 500:",
        ("tests/providers/test_vendors.py",),
    ),
    Mutant(
        "a-bid-without-its-price",
        "a bid is sent without its price, and the machine is rented at the full one",
        "providers/vast.py",
        '            body["price"] = self._bid(order)',
        "            self._bid(order)",
        ("tests/providers/test_vendors.py",),
    ),
)
