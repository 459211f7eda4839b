"""Checks settings of the trainers that run a program of the user's own: no worker needs to report them."""

from simpletuner_fleet.core.configs.bundle import SIMILAR, Bundle, misspelt
from simpletuner_fleet.core.configs.options import OptionFinding


def check_launch_settings(bundle: Bundle) -> list[OptionFinding]:
    """Returns warnings only: a key that resembles a setting more closely is refused with the config itself."""
    return [
        OptionFinding(
            path=f"$.settings.{key}",
            level="warning",
            detail=f"The trainer '{bundle.trainer}' has no setting '{key}': only the program can read it, from its config.",
            next=f"Did you mean '{name}'?",
        )
        for key, name in misspelt(bundle, SIMILAR).items()
    ]
