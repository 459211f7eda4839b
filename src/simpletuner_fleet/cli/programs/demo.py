"""Runs `simpletuner demo`: a server, workers and a small diffusion model that really trains, in one command."""

import argparse
import contextlib
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from simpletuner_fleet.cli.frame.errors import ExitCode, fail
from simpletuner_fleet.cli.frame.unforeseen import insist_on_server_packages
from simpletuner_fleet.cli.jobs.finishing_notes import finishing_text
from simpletuner_fleet.cli.programs.browser import open_page
from simpletuner_fleet.cli.programs.demo_fleet import DemoFleet
from simpletuner_fleet.cli.remote.api import Api
from simpletuner_fleet.core.jobs.states import TERMINAL
from simpletuner_fleet.languages import _, ngettext, spoken_number

JOB_WITHIN_S = 1800.0
LOOK_EVERY_S = 0.3
Handler = Callable[[int, FrameType | None], Any] | signal.Handlers


def demo(args: argparse.Namespace) -> int:
    insist_on_server_packages()
    folder = Path(tempfile.mkdtemp(prefix="simpletuner-demo-"))
    fleet = DemoFleet(folder)
    _on_hangup(signal.default_int_handler)
    try:
        return _run(fleet, steps=args.steps, chaos=args.chaos, look=args.open)
    finally:
        _on_hangup(signal.SIG_IGN)
        fleet.stop()
        if args.keep:
            print("\n" + _("All data is stored in %(folder)s", folder=folder))
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _on_hangup(handler: Handler) -> None:
    """Sets what follows when the terminal is closed, or the demo ended: its programs do not end by themselves."""
    for number in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as with nohup
            signal.signal(number, handler)


def _run(fleet: DemoFleet, *, steps: int, chaos: bool, look: bool) -> int:
    _say(_("1. Start the orchestrator"))
    with fleet.server() as api:
        link = str(api.post("/api/admin/users/link")["link"])
        print("   " + _("Open it in a browser: %(link)s", link=link), flush=True)
        if look:
            open_page(link, fleet.folder)
        _say(_("2. Create a worker and start it") if not chaos else _("2. Create two workers and start one"))
        fleet.worker(api, "demo-worker-1")
        _say(_("3. Save a config and submit it"))
        api.put("/api/configs/demo", _config(steps, slowly=chaos))
        job_id = api.post("/api/queue/submit", {"config_name": "demo", "target": "worker"})["job_id"]
        print(
            "   "
            + ngettext(
                "job %(job_id)s: a diffusion model learns to draw shapes, %(n)s step",
                "job %(job_id)s: a diffusion model learns to draw shapes, %(n)s steps",
                steps,
                job_id=job_id,
            ),
            flush=True,
        )
        _say(_("4. Watch it train"))
        if chaos:
            _until_checkpoint(api, job_id)
            print(
                "\n   " + _("kill -9: the worker's machine is gone: agent, supervisor and trainer"),
                flush=True,
            )
            fleet.kill_machine("demo-worker-1")
            fleet.worker(api, "demo-worker-2")
        job = _follow(api, job_id)
        outcome = _tell_end(api, job, chaos)
        if sys.stdin.isatty() and sys.stdout.isatty():
            _stay(api.where.url)
        return outcome


def _stay(url: str) -> None:
    """Keeps the server running until Ctrl-C, since somebody may be looking at the page."""
    print("\n" + _("The console stays at %(url)s until you press Ctrl-C.", url=url), flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(60)


def _config(steps: int, *, slowly: bool) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "max_train_steps": steps,
        "checkpointing_steps": max(1, steps // 8),
        "validation_steps": max(1, steps // 4),
    }
    if slowly:
        settings["demo_step_delay_s"] = 0.002
    return {"trainer": "demo", "settings": settings, "resources": {"gpus": 0}}


def _until_checkpoint(api: Api, job_id: str) -> None:
    """Waits until the orchestrator has stored a checkpoint; only then is it safe."""
    deadline = time.monotonic() + JOB_WITHIN_S
    bar = _Bar()
    while time.monotonic() < deadline:
        job = api.get(f"/api/jobs/{job_id}")
        bar.show(job)
        stored = api.get(f"/api/jobs/{job_id}/artifacts").get("manifests") or []
        if any(manifest.get("kind") == "checkpoint" for manifest in stored):
            return
        if job["status"] in TERMINAL:
            break
        time.sleep(LOOK_EVERY_S)
    raise fail(
        _("no checkpoint arrived"),
        _("the job ended too soon"),
        "simpletuner demo --keep",
        "E_DEMO",
        ExitCode.FAILED,
    )


def _follow(api: Api, job_id: str) -> dict[str, Any]:
    deadline = time.monotonic() + JOB_WITHIN_S
    bar, said = _Bar(), ""
    while time.monotonic() < deadline:
        job: dict[str, Any] = api.get(f"/api/jobs/{job_id}")
        bar.show(job)
        if job["status"] in TERMINAL:
            bar.end()
            return job
        text = finishing_text(job)
        if text and text != said:
            bar.end()
            print(f"   {text}", flush=True)
            said = text
        time.sleep(LOOK_EVERY_S)
    raise fail(
        _("the demo's job did not end in time"), "", "simpletuner demo --keep", "E_DEMO", ExitCode.TIMEOUT
    )


def _tell_end(api: Api, job: dict[str, Any], chaos: bool) -> int:
    _say(_("5. What happened"))
    for attempt in api.get(f"/api/jobs/{job['id']}/attempts")["attempts"]:
        print(f"   {_attempt_text(attempt)}")
    manifests = api.get(f"/api/jobs/{job['id']}/artifacts").get("manifests") or []
    for manifest in manifests:
        print(
            "   "
            + ngettext(
                "kept: %(name)s, %(n)s file, %(total_bytes)s bytes",
                "kept: %(name)s, %(n)s files, %(total_bytes)s bytes",
                len(manifest["files"]),
                name=manifest["name"],
                total_bytes=spoken_number(manifest["total_bytes"]),
            )
        )
    verdict = api.get("/api/audit/verify")
    print(
        "\n"
        + _(
            "The job ended as %(status)s; %(checked)s audit entries, valid: %(valid)s.",
            status=job["status"],
            checked=verdict["checked"],
            valid=_("yes") if verdict["valid"] else _("no"),
        )
    )
    went_well = job["status"] == "completed" and verdict["valid"] and (not chaos or job["attempt"] > 1)
    return ExitCode.OK if went_well else ExitCode.JOB_FAILED


def _attempt_text(attempt: dict[str, Any]) -> str:
    values = {name: attempt[name] for name in ("attempt", "worker_name", "outcome")}
    if attempt.get("resumed_from_step") is None:
        return _("attempt %(attempt)s on %(worker_name)s: %(outcome)s", **values)
    step = spoken_number(attempt["resumed_from_step"])
    return _(
        "attempt %(attempt)s on %(worker_name)s: %(outcome)s, resumed from step %(step)s", step=step, **values
    )


class _Bar:
    """Draws a progress bar: one line per tenth of the way on a pipe, one line that is redrawn on a terminal."""

    def __init__(self) -> None:
        self._live = sys.stdout.isatty()
        self._last = ""

    def show(self, job: dict[str, Any]) -> None:
        progress = job.get("progress") or {}
        step, total = progress.get("step"), progress.get("total")
        if not step or not total:
            text = f"   {job['status']}"
        else:
            loss = f"  loss {progress['loss']:.4f}" if isinstance(progress.get("loss"), float) else ""
            shown = step if self._live else int(10 * step / total) * total // 10
            filled = int(30 * step / total)
            text = f"   {'█' * filled}{'·' * (30 - filled)} {shown:,}/{total:,}{loss if self._live else ''}"
        if text != self._last:
            print(f"\r\x1b[K{text}" if self._live else text, end="" if self._live else "\n", flush=True)
            self._last = text

    def end(self) -> None:
        if self._live:
            print(flush=True)


def _say(heading: str) -> None:
    print(f"\n{heading}", flush=True)
