"""Rows to store, each with what a test does not care about filled in."""

from typing import Any

from simpletuner_fleet.core.events import ORCHESTRATOR, Actor, Event, EventType
from simpletuner_fleet.core.jobs.job import Attempt, AttemptState, Job, JobState, Requirements
from simpletuner_fleet.core.people.accounts import Role, Session, User
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.ports import ApiToken, ConfigVersion

BUNDLE = b'{"settings":{}}'
ANNA = Actor("t_anna", "Anna", "10.0.0.7")


def job(number: int, **given: Any) -> Job:
    fields: dict[str, Any] = {
        "id": f"j_{number}",
        "seq": number,
        "config_name": "sdxl",
        "config_version": 1,
        "requires": Requirements(),
        "class_id": "c_plain",
        "owner": "t_anna",
        "state": JobState.QUEUED,
        "rank": 0.0,
        "priority": 0,
        "max_retries": 3,
        "created_at": 100.0 + number,
    }
    return Job(**{**fields, **given})


def attempt(number: int, **given: Any) -> Attempt:
    fields: dict[str, Any] = {
        "id": f"a_{number}",
        "job_id": "j_1",
        "number": number,
        "epoch": number,
        "worker_id": "w_1",
        "worker_name": "gpu-1",
        "state": AttemptState.OFFERED,
        "offered_at": 200.0 + number,
    }
    return Attempt(**{**fields, **given})


def worker(number: int, **given: Any) -> Worker:
    fields: dict[str, Any] = {
        "id": f"w_{number}",
        "name": f"gpu-{number}",
        "token_hash": f"hash-{number}",
        "token_created_at": 10.0,
        "created_at": 10.0 + number,
    }
    return Worker(**{**fields, **given})


def token(number: int, **given: Any) -> ApiToken:
    fields: dict[str, Any] = {
        "id": f"t_{number}",
        "name": f"token {number}",
        "token_hash": f"hash-{number}",
        "permissions": ("jobs.read",),
        "created_at": float(number),
    }
    return ApiToken(**{**fields, **given})


def config(name: str, version: int, **given: Any) -> ConfigVersion:
    fields: dict[str, Any] = {"bundle": b"{}", "created_at": float(version), "created_by": "t_anna"}
    return ConfigVersion(name=name, version=version, **{**fields, **given})


def event(kind: EventType = EventType.JOB_SUBMITTED, target: str = "j_1", **given: Any) -> Event:
    fields: dict[str, Any] = {"actor": ORCHESTRATOR, "target_type": "job", "details": {}}
    return Event(type=kind, target_id=target, **{**fields, **given})


def user(number: int, **given: Any) -> User:
    fields: dict[str, Any] = {
        "id": f"u_{number}",
        "name": f"User {number}",
        "role": Role.MEMBER,
        "created_at": float(number),
    }
    return User(**{**fields, **given})


def session(number: int, user: int = 1, **given: Any) -> Session:
    fields: dict[str, Any] = {
        "token_hash": f"session-{number}",
        "user_id": f"u_{user}",
        "created_at": float(number),
        "seen_at": float(number),
    }
    return Session(**{**fields, **given})
