"""Defines how a try to deliver may fail."""


class DeliveryFailed(Exception):
    """A message could not be delivered.

    `detail` is shown to the endpoint's owner: it holds nothing that the other side wrote but its status.
    """

    def __init__(self, detail: str, *, hopeless: bool = False, wait_s: float = 0.0) -> None:
        super().__init__(detail)
        self.detail = detail
        self.hopeless = hopeless
        """Nobody wants it there any more."""
        self.wait_s = wait_s
        """For so long the other side asks not to be called again."""
