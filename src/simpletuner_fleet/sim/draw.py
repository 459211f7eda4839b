"""What fleet a seed gets: its policy, its machines, its orchestrators."""

from random import Random

from msgspec.structs import replace

from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.sim.machine import MachineKind
from simpletuner_fleet.sim.world import World

SEVERAL_SHARE = 0.3
SLOW = Policy(retry_backoff_max_s=60.0, checkpoint_wait_s=60.0, results_wait_s=200.0)
FAST = Policy(
    heartbeat_interval_s=10.0,
    heartbeat_timeout_s=40.0,
    retry_backoff_s=2.0,
    retry_backoff_max_s=20.0,
    ephemeral_ttl_s=200.0,
    reserve_after_s=60.0,
    cancel_grace_s=5.0,
    checkpoint_wait_s=20.0,
    results_wait_s=60.0,
)


def clock_rates(chance: Random) -> tuple[float, ...]:
    """Mostly one orchestrator; else two or three, whose clocks run a little fast or slow."""
    if chance.random() > SEVERAL_SHARE:
        return ()
    return tuple(chance.uniform(0.97, 1.03) for _ in range(chance.choice((2, 2, 3))))


def with_approvals(policy: Policy) -> Policy:
    return Policy(
        **{name: getattr(policy, name) for name in Policy.__struct_fields__} | {"require_approval": True}
    )


def kinds(world: World) -> list[MachineKind]:
    """One plain persistent machine, and up to five of any kind."""
    chance = world.chance
    kinds = [MachineKind(name="m0", gpus=2, max_jobs=chance.choice((1, 2)))]
    kinds += [
        MachineKind(
            name=f"m{at}",
            persistent=chance.random() < 0.75,
            gpus=chance.choice((1, 1, 2)),
            max_jobs=chance.choice((1, 1, 2)),
            older=chance.random() < 0.2,
            labels=chance.choice(({}, {"team": "nlp"}, {"team": "vision"})),
        )
        for at in range(1, chance.randint(1, 6))
    ]
    kinds = [replace(kind, forwarded=not kind.older and chance.random() < 0.3) for kind in kinds]
    if len(kinds) > 1 and not kinds[-1].older and chance.random() < 0.3:
        kinds[-1] = replace(kinds[-1], host="m0")  # two workers on one machine
    return kinds
