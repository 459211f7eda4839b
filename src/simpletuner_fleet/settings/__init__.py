"""Lists every setting of the programs in one table; `client.resolve_settings` finds their values."""

from simpletuner_fleet.settings.client import CLIENT
from simpletuner_fleet.settings.server import SERVER
from simpletuner_fleet.settings.setting import Setting
from simpletuner_fleet.settings.worker import WORKER

GROUPS = {"server": SERVER, "worker": WORKER, "client": CLIENT}
"""By the table of the settings file that holds them."""

__all__ = ["CLIENT", "GROUPS", "SERVER", "WORKER", "Setting"]
