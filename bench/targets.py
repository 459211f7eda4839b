"""Every promise about speed and size, in one place. A run passes when every row of it reaches its target."""

from bench.rows import Relation, Target


def at_least(what: str, limit: float, unit: str, peer: str = "") -> Target:
    return Target(what=what, relation=Relation.AT_LEAST, limit=limit, unit=unit, peer=peer)


def at_most(what: str, limit: float, unit: str) -> Target:
    return Target(what=what, relation=Relation.AT_MOST, limit=limit, unit=unit)


def below(what: str, limit: float, unit: str) -> Target:
    return Target(what=what, relation=Relation.BELOW, limit=limit, unit=unit)


DRAMATIQ, CELERY, OUR_SQLITE, CURL, SLURM = "Dramatiq", "Celery", "our SQLite", "curl -T", "Slurm"
SHORT_QUEUE = "short queue"

CYCLES_AGAINST_DRAMATIQ = at_least("life cycles, SQLite FULL, against Dramatiq", 1.0, "x", DRAMATIQ)
CYCLES_AGAINST_CELERY = at_least("life cycles, SQLite FULL, against Celery", 3.0, "x", CELERY)
CYCLES_ON_POSTGRES = at_least("life cycles, PostgreSQL, against our SQLite", 0.7, "x", OUR_SQLITE)

START_P50 = at_most("submit to trainer running, p50", 7.0, "ms")
START_P99 = at_most("submit to trainer running, p99", 25.0, "ms")
COMPLETED_P50 = at_most("trainer's exit to job completed, p50", 30.0, "ms")
COMPLETED_P99 = at_most("trainer's exit to job completed, p99", 100.0, "ms")
NEXT_P50 = at_most("trainer's exit to start of the next job, p50", 50.0, "ms")
NEXT_P99 = at_most("trainer's exit to start of the next job, p99", 200.0, "ms")

HEARTBEATS_KEPT = at_least("heartbeats, one core, kept connections", 8_000.0, "/s")
HEARTBEATS_NEW_TLS = at_least("heartbeats, one core, new TLS connections, resumed", 3_000.0, "/s")

MEMORY_PLAIN = at_most("server memory per connected worker, plain", 25.0, "KiB")
MEMORY_TLS = at_most("server memory per connected worker, TLS", 60.0, "KiB")
DISPATCH_P99 = at_most("dispatch with a large fleet, p99", 30.0, "ms")
FLEET_CPU = below("server CPU with a large fleet", 25.0, "% of a core")

LONG_QUEUE = at_least("life cycles, long queue against short", 0.95, "x", SHORT_QUEUE)

AGENT_MEMORY = at_most("agent at rest, resident", 60.0, "MiB")
AGENT_CPU = below("agent at rest, CPU", 0.5, "% of a core")

LOG_SLOWDOWN = below("slowdown of a trainer that prints", 2.0, "%")
LOG_AGENT_GROWTH = below("agent's memory growth while it sends a log", 32.0, "MiB")
LOG_PAGE = below("last 1,000 lines of a log as a page", 1_000.0, "ms")

UPLOAD_AGAINST_CURL = at_least("upload of a checkpoint, against curl", 0.8, "x", CURL)
UPLOAD_AGENT_GROWTH = at_most("agent's memory through an upload, most less least", 32.0, "MiB")

START_AGAINST_SLURM = at_least("starts a second, against Slurm", 30.0, "x", SLURM)
