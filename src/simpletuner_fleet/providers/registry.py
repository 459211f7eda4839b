"""Knows the kinds of providers: the built-in ones, and those from installed packages."""

import logging
from collections.abc import Callable
from importlib.metadata import entry_points

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.providers.contract import MachineProvider, ProviderSurroundings
from simpletuner_fleet.providers.kubernetes.provider import KubernetesProvider
from simpletuner_fleet.providers.process import ProcessProvider
from simpletuner_fleet.providers.runpod import RunPodProvider
from simpletuner_fleet.providers.slurm import SlurmProvider
from simpletuner_fleet.providers.ssh.provider import SshProvider
from simpletuner_fleet.providers.vast import VastProvider

log = logging.getLogger(__name__)

ENTRY_POINTS = "simpletuner_fleet.providers"
MakeProvider = Callable[[ProviderSurroundings], MachineProvider]
BUILT_IN: dict[str, MakeProvider] = {
    "kubernetes": KubernetesProvider,
    "process": ProcessProvider,
    "runpod": RunPodProvider,
    "slurm": SlurmProvider,
    "ssh": SshProvider,
    "vast": VastProvider,
}


def kinds() -> dict[str, MakeProvider]:
    """Returns the known kinds. A plug-in may replace a built-in provider by taking its name."""
    known = dict(BUILT_IN)
    for entry_point in entry_points(group=ENTRY_POINTS):
        try:
            known[entry_point.name] = entry_point.load()
        except Exception:  # anybody's code: one broken plug-in must not keep the server from starting
            log.exception("the provider plug-in %r cannot be loaded and is left out", entry_point.name)
    return known


def make_provider(surroundings: ProviderSurroundings) -> MachineProvider:
    """Returns the provider of a pool.

    Raises Invalid for an unknown kind, and for settings that the kind does not take.
    """
    known, kind = kinds(), surroundings.pool.request.provider
    if kind not in known:
        raise Invalid(
            f"There is no provider '{kind}'.",
            path="$.provider",
            next_step=f"Use one of: {', '.join(sorted(known))}.",
        )
    return known[kind](surroundings)
