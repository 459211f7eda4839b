"""The worker agent at rest: connected, idle, waiting for a job."""

import time

from bench.machine import children, cpu_s, rss_bytes
from bench.options import Options
from bench.programs import running_agents, running_server, scratch
from bench.rows import Results
from bench.targets import AGENT_CPU, AGENT_MEMORY

TARGETS = (AGENT_MEMORY, AGENT_CPU)
TITLE = "worker agent at rest"
MIB = 1024 * 1024
SETTLE_S = 3.0
PERIODS = 2


def measure(options: Options, results: Results) -> None:
    with scratch() as folder, running_server(folder) as server, running_agents(server, folder) as (agent,):
        time.sleep(SETTLE_S)
        memory, shares, child_shares = [], [], []
        for _ in range(PERIODS):
            pids = list(all_below(agent))
            before, children_before = cpu_s(agent), sum(cpu_s(pid) for pid in pids)
            began = time.monotonic()
            time.sleep(options.rest_s)
            seconds = time.monotonic() - began
            shares.append((cpu_s(agent) - before) / seconds * 100)
            child_shares.append((sum(cpu_s(pid) for pid in pids) - children_before) / seconds * 100)
            memory.append(rss_bytes(agent) / MIB)
        results.judge(AGENT_MEMORY, memory)
        results.judge(AGENT_CPU, shares, f"over {options.rest_s:g} s each")
        for pid, command in all_below(agent).items():
            results.add(
                f"{_kind(pid, agent, command)}, resident",
                "MiB",
                [rss_bytes(pid) / MIB],
                "apart from the agent",
            )
        results.add("its children, CPU", "% of a core", child_shares, "apart from the agent")


def all_below(pid: int) -> dict[int, str]:
    """Returns every process that comes of this one, with its command line."""
    processes = children(pid)
    for child in list(processes):
        processes |= all_below(child)
    return processes


def _kind(pid: int, agent: int, command: str) -> str:
    if "nvml" in command:
        return "NVML child"
    return "what forks shims" if pid in children(agent) else "spare shim"
