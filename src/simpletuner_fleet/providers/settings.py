"""Reads a pool's settings for its provider; a setting that nobody has read is reported as unknown."""

from pathlib import Path

from simpletuner_fleet.core.configs.bundle import check_nodes
from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.money.amounts import read_amount
from simpletuner_fleet.core.provisioning.offers import MachineOffer
from simpletuner_fleet.core.provisioning.pool import MachinePool

LOG_BYTES = 16_000


class SettingsReader:
    def __init__(self, pool: MachinePool) -> None:
        self._kind = pool.request.provider
        self._left = dict(pool.request.settings)

    def word(self, name: str, default: str = "") -> str:
        return self._left.pop(name, default)

    def number(self, name: str, default: float) -> float:
        text = self._left.pop(name, None)
        try:
            value = default if text is None else float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < 1e9:
            raise Invalid(
                f"The provider's setting '{name}' must be a number of at least 0.", path="$.settings"
            )
        return value

    def money(self, name: str) -> int:
        """Reads an amount of the fleet's currency; 0 where the setting is missing."""
        try:
            return read_amount(self._left.pop(name, "0"))
        except ValueError as error:
            raise Invalid(f"The provider's setting '{name}': {error}.", path="$.settings") from None

    def finish(self) -> None:
        if self._left:
            names = ", ".join(sorted(self._left))
            raise Invalid(f"The provider '{self._kind}' has no setting {names}.", path="$.settings")


def declared_offer(settings: SettingsReader, kind: str, nodes: int = 1) -> MachineOffer:
    """Returns the one machine that a pool describes where its provider has no catalogue."""
    gpus = int(settings.number("gpus", 0))
    check_nodes(nodes, gpus, "$.settings")
    return MachineOffer(
        id=kind,
        hourly_micros=settings.money("price"),
        gpu_name=settings.word("gpu_name"),
        gpus=gpus,
        nodes=nodes,
        vram_gb=settings.number("vram_gb", 0.0),
        accelerator=settings.word("accelerator", "cuda"),
    )


def end_of_file(file: Path) -> str:
    """Returns the end of what a machine printed, or an empty text where the file cannot be read."""
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - LOG_BYTES))
            return opened.read().decode(errors="replace")
    except OSError:
        return ""
