"""Checks settings of a provider that must have a certain form."""

from simpletuner_fleet.core.errors import Invalid


def insist(name: str, holds: bool, form: str) -> None:
    """Raises Invalid for a setting that is not of this form."""
    if not holds:
        raise Invalid(f"The provider's setting '{name}' is not of the form {form}.", path="$.settings")
