"""A client sees nothing of the user who runs the tests."""

from tests.cli.conftest import home

__all__ = ["home"]
