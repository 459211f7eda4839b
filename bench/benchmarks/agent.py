"""The worker agent at rest: connected, idle, waiting for a job."""

import time

from bench.machine import children, cpu_s, rss_bytes
from bench.options import Options
from bench.programs import running_agents, running_server, scratch
from bench.rows import Result

MIB = 1024 * 1024
RSS_MIB = 60.0
CPU_PERCENT = 0.5
SETTLE_S = 3.0


def measure(options: Options) -> Result:
    result = Result(benchmark="agent", title="worker agent at rest")
    with scratch() as folder, running_server(folder) as server, running_agents(server, folder) as (agent,):
        time.sleep(SETTLE_S)
        repetitions = min(2, options.repetitions)
        memory, shares, helpers = [], [], []
        for _ in range(repetitions):
            others = list(children(agent))
            before, helpers_before = cpu_s(agent), sum(cpu_s(pid) for pid in others)
            began = time.monotonic()
            time.sleep(options.rest_s)
            passed = time.monotonic() - began
            shares.append((cpu_s(agent) - before) / passed * 100)
            helpers.append((sum(cpu_s(pid) for pid in others) - helpers_before) / passed * 100)
            memory.append(rss_bytes(agent) / MIB)
        rss = result.add("agent, resident", "MiB", memory)
        cpu = result.add("agent, CPU", "% of a core", shares, f"over {options.rest_s:g} s each")
        for pid, command in children(agent).items():
            kind = "NVML child" if "nvml" in command else "spare shim"
            result.add(f"{kind}, resident", "MiB", [rss_bytes(pid) / MIB], "apart from the agent")
        result.add("its children, CPU", "% of a core", helpers, "apart from the agent")
    result.at_most("agent, resident", rss, RSS_MIB, "MiB")
    result.below("agent, CPU", cpu, CPU_PERCENT, "%")
    return result
