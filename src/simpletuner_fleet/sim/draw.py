"""Draws the fleet of a seed: its size, its policy, its machines, its orchestrators."""

from random import Random

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.sim.machine import MachineKind
from simpletuner_fleet.sim.world import World

LARGE_SHARE = 0.01
SMALL_STEPS = Policy(told_at_once=2, placed_at_once=2, given_up_at_once=1)
"""So little is done in one step that what follows from an end, a limit or a silence takes several."""
SLOW = replace(SMALL_STEPS, retry_backoff_max_s=60.0, checkpoint_wait_s=60.0, results_wait_s=200.0)
FAST = replace(
    SMALL_STEPS,
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
QUICK = replace(
    SMALL_STEPS,
    heartbeat_interval_s=8.0,
    heartbeat_timeout_s=24.0,
    retry_backoff_s=1.0,
    retry_backoff_max_s=10.0,
    ephemeral_ttl_s=60.0,
    reserve_after_s=30.0,
    cancel_grace_s=3.0,
    checkpoint_wait_s=10.0,
    results_wait_s=30.0,
)
"""A silence and what follows from it take half a minute, so that a world of one minute can hold two of them."""


class Size(Struct, frozen=True, kw_only=True):
    """Sets the size of one seed: how much there is of everything, and for how long faults last.

    Values are drawn from fields that are tuples.
    """

    policies: tuple[tuple[float, Policy], ...]
    """Each with the share of seeds that it and those before it are drawn for."""
    machines: tuple[int, ...]
    jobs_of_first: tuple[int, ...]
    """How many jobs the first machine runs at once."""
    several_share: float
    """Of seeds that have several orchestrators."""
    timeouts: tuple[float, float]
    """For how many heartbeat timeouts faults last."""
    faults: tuple[int, ...]
    faults_until: float
    """The share of that time in which they begin: what begins late is mended before anybody has noticed."""
    most_acts: int
    jobs: tuple[int, ...]
    jobs_until: float
    gpus: tuple[int, ...]
    """How many a job asks for."""
    runs_s: tuple[float, ...]
    """How long jobs run that are not short: up to the first of these, or as long as one of the others."""
    hostile_share: float
    lies: tuple[int, int]
    hostile_within: float
    boots_within_s: float
    latest_repeat_s: float
    longest_hand_over_s: float
    hurries: bool
    """Whether at rest what takes its time is cut short: trainings, machines that boot, models on their way."""
    rest_asked_every: int


SMALL = Size(
    policies=((0.85, QUICK), (0.97, FAST), (1.0, SLOW)),
    machines=(1, 2, 2, 2, 3),
    jobs_of_first=(1, 2, 2),
    several_share=0.16,
    timeouts=(1.4, 2.6),
    faults=(1, 3, 6, 9),
    faults_until=0.65,
    most_acts=5,
    jobs=(1, 2, 2, 3),
    jobs_until=0.55,
    gpus=(1, 1, 1, 1, 2, 0),
    runs_s=(40.0, 50.0, 120.0),
    hostile_share=0.25,
    lies=(5, 15),
    hostile_within=1 / 3,
    boots_within_s=5.0,
    latest_repeat_s=40.0,
    longest_hand_over_s=15.0,
    hurries=True,
    rest_asked_every=8,
)
LARGE = Size(
    policies=((0.75, FAST), (1.0, SLOW)),
    machines=(1, 2, 3, 4, 5, 6),
    jobs_of_first=(1, 2),
    several_share=0.3,
    timeouts=(3.0, 10.0),
    faults=(0, 3, 8, 15),
    faults_until=1.0,
    most_acts=10,
    jobs=(2, 3, 4, 5, 6, 7, 8, 9, 10),
    jobs_until=0.8,
    gpus=(1, 1, 1, 1, 2, 0),
    runs_s=(60.0, 150.0, 150.0),
    hostile_share=0.3,
    lies=(5, 25),
    hostile_within=0.5,
    boots_within_s=20.0,
    latest_repeat_s=200.0,
    longest_hand_over_s=100.0,
    hurries=False,
    rest_asked_every=24,
)
"""What needs many actors or much time is seen in these. There are few of them: each costs as much as four small ones."""


def size(seed: int) -> Size:
    """Draws the size from a source of its own, so that a large world is the same whether drawn or asked for."""
    return LARGE if Random(f"size of {seed}").random() < LARGE_SHARE else SMALL


def policy(chance: Random, size: Size) -> Policy:
    drawn = chance.random()
    base = next(policy for share, policy in size.policies if drawn < share)
    return base if chance.random() < 0.8 else with_approvals(base)


def clock_rates(chance: Random, size: Size) -> tuple[float, ...]:
    """Draws mostly one orchestrator; else two or three, whose clocks run a little fast or slow."""
    if chance.random() > size.several_share:
        return ()
    return tuple(chance.uniform(0.97, 1.03) for _ in range(chance.choice((2, 2, 3))))


def with_approvals(policy: Policy) -> Policy:
    return Policy(
        **{name: getattr(policy, name) for name in Policy.__struct_fields__} | {"require_approval": True}
    )


def kinds(world: World, size: Size) -> list[MachineKind]:
    """Draws one plain persistent machine, and others of any kind."""
    chance = world.chance
    kinds = [MachineKind(name="m0", gpus=2, max_jobs=chance.choice(size.jobs_of_first))]
    kinds += [
        MachineKind(
            name=f"m{at}",
            persistent=chance.random() < 0.75,
            gpus=chance.choice((1, 1, 2)),
            max_jobs=chance.choice((1, 1, 2)),
            older=chance.random() < 0.2,
            labels=chance.choice(({}, {"team": "nlp"}, {"team": "vision"})),
        )
        for at in range(1, chance.choice(size.machines))
    ]
    kinds = [replace(kind, forwarded=not kind.older and chance.random() < 0.3) for kind in kinds]
    if len(kinds) > 1 and not kinds[-1].older and chance.random() < 0.3:
        kinds[-1] = replace(kinds[-1], host="m0")  # two workers on one machine
    return kinds
