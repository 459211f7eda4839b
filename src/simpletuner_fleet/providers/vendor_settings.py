"""Reads the settings that pools of all clouds share, such as the image, the disk and the numbers of GPUs.

They also say what a US dollar is worth in the fleet's currency.
"""

import re
from decimal import Decimal, InvalidOperation

from msgspec import Struct

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.money.amounts import MAX_MICROS, MICROS
from simpletuner_fleet.providers.contract import ProviderSurroundings
from simpletuner_fleet.providers.settings import SettingsReader
from simpletuner_fleet.providers.vendor_http import checked_base_url

DOLLAR = "USD"
ROOM_GB = 20.0
"""For the system and the trainer, beside the datasets."""
MAX_COUNTS = 8
_CUDA = re.compile(r"\d{1,3}\.\d{1,3}")


class VendorSettings(Struct, frozen=True, kw_only=True):
    api_url: str
    image: str
    command: str
    disk_gb: int
    counts: tuple[int, ...]
    """How many GPUs its machines may have."""
    min_cuda: str
    dollar: Decimal
    """What a US dollar is in the fleet's currency."""
    settle_s: float
    sweep_s: float

    def micros(self, dollars: object) -> int | None:
        """Returns an amount in dollars in the fleet's currency; None for what is not an amount."""
        if isinstance(dollars, bool) or not isinstance(dollars, int | float):
            return None
        try:
            micros = int((Decimal(str(dollars)) * self.dollar * MICROS).to_integral_value())
        except (InvalidOperation, ValueError, OverflowError):
            return None
        return micros if 0 <= micros <= MAX_MICROS else None

    def dollars(self, micros: int) -> float:
        """Returns an amount in dollars, rounded down to what vendors take: never more than was offered."""
        return int(Decimal(micros) / self.dollar / 1000) / 1000


def vendor_settings(
    surroundings: ProviderSurroundings, settings: SettingsReader, *, api_url: str, command: str
) -> VendorSettings:
    request = surroundings.pool.request
    if not request.secret:
        raise Invalid(
            f"The provider '{request.provider}' needs a key.",
            path="$.secret",
            next_step="Store it with 'simpletuner secrets set NAME', and name it with --secret NAME.",
        )
    image = settings.word("image")
    if not image or len(image) > 512 or any(char.isspace() for char in image):
        raise Invalid(
            "The provider's setting 'image' must name the container image that its machines start.",
            path="$.settings",
        )
    return VendorSettings(
        api_url=checked_base_url(settings.word("api_url", api_url)),
        image=image,
        command=settings.word("command", command),
        disk_gb=max(1, int(settings.number("disk_gb", request.data_gb + ROOM_GB))),
        counts=_counts(settings.word("counts", "1")),
        min_cuda=_cuda(settings.word("min_cuda")),
        dollar=_dollar(settings.word("dollar"), surroundings.currency),
        settle_s=max(1.0, settings.number("settle_s", 120.0)),
        sweep_s=max(0.5, settings.number("sweep_s", 20.0)),
    )


def _counts(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if len(words) > MAX_COUNTS or not all(word.isdigit() and 1 <= int(word) <= 64 for word in words):
        raise Invalid(
            "The provider's setting 'counts' must be numbers of GPUs such as 1,2,4.", path="$.settings"
        )
    return tuple(sorted({int(word) for word in words}))


def _cuda(text: str) -> str:
    if text and not _CUDA.fullmatch(text):
        raise Invalid("The provider's setting 'min_cuda' must be a version such as 12.4.", path="$.settings")
    return text


def _dollar(text: str, currency: str) -> Decimal:
    if not text and currency == DOLLAR:
        return Decimal(1)
    try:
        rate = Decimal(text)
    except InvalidOperation:
        rate = Decimal(0)
    if not Decimal("0.000001") <= rate <= 1_000_000:
        raise Invalid(
            f"The provider's prices are in US dollars, and the fleet counts in {currency}.",
            path="$.settings",
            next_step=f"Say with the setting 'dollar' how many {currency} a dollar is, for example dollar=0.92.",
        )
    return rate
