"""Explains an error that no command has foreseen: a missing package, the machine, or a defect of ours."""

import errno
import os
import sys
import traceback
from collections.abc import Mapping
from importlib.util import find_spec

from simpletuner_fleet import __version__
from simpletuner_fleet.cli.frame.errors import CliError, ExitCode, fail, output_refused
from simpletuner_fleet.client.troubles import Trouble
from simpletuner_fleet.languages import _
from simpletuner_fleet.settings import values

SERVER_PACKAGES = ("uvloop", "httptools", "jinja2", "cryptography", "prometheus_client")
EXTRA_OF = {"psycopg": "server,postgres", "obstore": "server,s3"}
"""What brings a package that few need."""
SHOW = "SIMPLETUNER_VERBOSE"


def unforeseen(error: Exception, environ: Mapping[str, str] = os.environ) -> Trouble:
    if environ.get(SHOW, "").strip().lower() in values.YES:
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, ModuleNotFoundError) and error.name:
        return without_packages([error.name.partition(".")[0]]).trouble
    if isinstance(error, OSError) and error.errno == errno.ENOSPC and not error.filename:
        return output_refused(error).trouble
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return fail(
            _("the system refused something that the command needs"),
            f"{where}{error.strerror or error}",
            (
                _("check the disk and the folder:  df -h"),
                _("run it again with SIMPLETUNER_VERBOSE=1 to see where, and report it"),
            ),
            "E_MACHINE",
        ).trouble
    return fail(
        _("the command failed unexpectedly"),
        f"{type(error).__name__}: {error}",
        (
            _("run it again with SIMPLETUNER_VERBOSE=1 to see where, and report it"),
            "simpletuner doctor",
        ),
        "E_UNFORESEEN",
    ).trouble


def insist_on_server_packages() -> None:
    """Raises, with what to install, where a server is started in the light install for workers."""
    missing = [name for name in SERVER_PACKAGES if find_spec(name) is None]
    if missing:
        raise without_packages(missing)


def without_packages(names: list[str]) -> CliError:
    extra = EXTRA_OF.get(names[0], "server")
    return fail(
        _("this install lacks what the command needs"),
        _("there is no package %(packages)s", packages=", ".join(names)),
        (
            f"pip install 'simpletuner-fleet[{extra}]'",
            _(
                "from a file:  pip install '%(file)s'",
                file=f"./simpletuner_fleet-{__version__}-py3-none-any.whl[{extra}]",
            ),
        ),
        "E_LIGHT_INSTALL",
        ExitCode.USAGE,
    )
