"""Checks a config against its trainer's options, from a trainer on this machine or as workers reported them."""

import argparse
import os
from typing import Any

import msgspec

from simpletuner_fleet import __version__
from simpletuner_fleet.cli.files.examples import PYTHON_VARIABLE
from simpletuner_fleet.cli.frame.errors import CliError, ExitCode, fail
from simpletuner_fleet.cli.remote.api import Api, connected
from simpletuner_fleet.client.troubles import Trouble
from simpletuner_fleet.core.configs.bundle import DEFAULT_TRAINER, LAUNCH_SETTINGS, gpus_of, read_bundle
from simpletuner_fleet.core.configs.demo_settings import DEMO, check_demo_settings
from simpletuner_fleet.core.configs.launch_settings import check_launch_settings
from simpletuner_fleet.core.configs.options import check_settings
from simpletuner_fleet.core.configs.trainer_names import check_trainer
from simpletuner_fleet.languages import _
from simpletuner_fleet.trainers.simpletuner.options import ask_options

Checked = dict[str, Any]


def checked_config(args: argparse.Namespace, body: dict[str, Any]) -> tuple[Checked, Trouble | None]:
    """Returns the findings, and what kept the orchestrator from being asked.

    `checked_against` is None if nobody could be asked; such a config counts as unchecked.
    """
    bundle = read_bundle(body)
    python = args.trainer_python or os.environ.get(PYTHON_VARIABLE)
    unchecked: Checked = {
        "valid": True,
        "trainer": bundle.trainer,
        "gpus": gpus_of(bundle),
        "checked_against": None,
        "findings": [],
    }
    if python and bundle.trainer == DEFAULT_TRAINER and not getattr(args, "curl", False):
        options = ask_options(python, os.environ)
        if options is None:
            raise fail(
                _("the trainer in %(python)s cannot be asked for its options", python=python),
                _("it is not installed there, or cannot be imported"),
                _("name the Python that has the trainer: --trainer-python PATH"),
                "E_TRAINER",
                ExitCode.NOT_FOUND,
            )
        findings = check_settings(bundle, options)
        wrong = any(finding.level == "error" for finding in findings)
        document = {
            "valid": not wrong,
            "checked_against": options.version,
            "findings": msgspec.to_builtins(findings),
        }
        return {**unchecked, **document}, None
    try:
        with connected(args) as api:
            return ask_orchestrator(api, body), None
    except CliError as error:
        findings = [
            *check_trainer(bundle.trainer),
            *check_demo_settings(bundle),
            *check_launch_settings(bundle),
        ]
        wrong = any(finding.level == "error" for finding in findings)
        against = __version__ if bundle.trainer in (DEMO, *LAUNCH_SETTINGS) else None
        document = {"checked_against": against, "findings": msgspec.to_builtins(findings)}
        return {**unchecked, "valid": not wrong, **document}, error.trouble


def ask_orchestrator(api: Api, body: dict[str, Any]) -> Checked:
    return dict(api.post("/api/config-check", body, timeout_s=30.0))
