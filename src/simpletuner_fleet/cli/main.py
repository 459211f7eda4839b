"""Starts the command `simpletuner`. All else is loaded only once Ctrl-C ends it without a stack trace."""

import sys

from simpletuner_fleet.cli import interrupts


def main(arguments: list[str] | None = None) -> int:
    if arguments is None:
        interrupts.leave_at_once()
    from simpletuner_fleet.cli.dispatch import dispatch

    try:
        return dispatch(arguments)
    except KeyboardInterrupt:
        return interrupts.INTERRUPTED
    finally:
        if arguments is None:
            interrupts.leave_at_once()


if __name__ == "__main__":
    sys.exit(main())
