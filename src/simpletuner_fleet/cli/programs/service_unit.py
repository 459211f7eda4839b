"""Writes the text of a systemd unit. All functions are pure: they take words and return text."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from simpletuner_fleet.client import troubles

TOKEN_CREDENTIAL = "worker-token"
FINAL = (troubles.USAGE, troubles.AUTH, troubles.CONFLICT, troubles.TLS)
"""Nothing gets better by trying again: a wrong option, a refused token, another machine with it, a wrong certificate."""
LONGER_THAN_GRACE_S = 15
OWN_USER = "simpletuner-worker"
OWN_HOME = f"/var/lib/{OWN_USER}"
SERVER_STOPS_WITHIN_S = 30
OWN_GROUPS = ("Delegate=yes", "DelegateSubgroup=agent")
"""The worker makes a control group for each job beside its own; systemd before 254 does not know the second line."""


class Unit(Struct, frozen=True, kw_only=True):
    role: str
    program: Sequence[str]
    options: Sequence[str]
    user: str
    environment: Mapping[str, str] = {}
    token_file: str = ""
    """Where the worker's token lies; systemd reads it as root and shows it to this service alone."""
    stop_within_s: float = SERVER_STOPS_WITHIN_S
    writes_to: Sequence[str] = ()
    """Folders beside its own that it, or a job behind its wall, may write to."""

    @property
    def name(self) -> str:
        return unit_name(self.role)

    def text(self) -> str:
        words = [*self.program, self.role, *self.options]
        command = " ".join(quoted(word) for word in words)
        if self.token_file:
            # The folder is systemd's to name: the only variable that stands in the command.
            command += f' --worker-token-file "${{CREDENTIALS_DIRECTORY}}/{TOKEN_CREDENTIAL}"'
        lines = [
            f"# Written by 'simpletuner service install {self.role}'; running it again replaces this file.",
            "[Unit]",
            f"Description=SimpleTuner Fleet {self.role}",
            "Wants=network-online.target",
            "After=network-online.target",
            "",
            "[Service]",
            "Type=exec",
            f"User={self.user}",
            *self._sandbox(),
            f"ExecStart={command}",
            *(f"Environment={quoted(f'{name}={value}')}" for name, value in self.environment.items()),
            *([f"LoadCredential={TOKEN_CREDENTIAL}:{self.token_file}"] if self.token_file else []),
            "Restart=on-failure",
            "RestartSec=10",
            f"RestartPreventExitStatus={' '.join(str(status) for status in FINAL)}",
            # A worker's trainers outlive a crash of its agent: their guardians end them if no new one comes.
            f"KillMode={'process' if self.role == 'worker' else 'mixed'}",
            f"TimeoutStopSec={self.stop_within_s:g}",
            "",
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        ]
        return "\n".join(lines)

    def _sandbox(self) -> list[str]:
        """Returns the sandbox options; mounts over /proc are left out, for jobs need their own process table."""
        if self.user == "root":  # which gives each job a user, and needs its rights for that
            return ["KeyringMode=private", *OWN_GROUPS]
        lines = [
            "NoNewPrivileges=yes",
            "CapabilityBoundingSet=",
            "PrivateTmp=yes",
            "RestrictSUIDSGID=yes",
            "RestrictRealtime=yes",
            "LockPersonality=yes",
            "KeyringMode=private",
            "UMask=0077",
            *OWN_GROUPS,
        ]
        if self.user != OWN_USER:
            return [*lines, "ProtectSystem=full"]
        return [
            *lines,
            "ProtectSystem=strict",
            "ProtectHome=read-only",
            f"StateDirectory={OWN_USER}",
            "StateDirectoryMode=0700",
            f"Environment=HOME={OWN_HOME}",
            *(f"ReadWritePaths={quoted(path)}" for path in self.writes_to),
        ]


def own_user_line() -> str:
    """Describes for systemd-sysusers a user without password, shell and groups."""
    return f'u {OWN_USER} - "SimpleTuner Fleet worker" {OWN_HOME}\n'


def unit_name(role: str) -> str:
    return f"simpletuner-{role}.service"


def quoted(word: str) -> str:
    """Quotes a word so that systemd sees no variable and no specifier in it."""
    plain = word.replace("%", "%%").replace("$", "$$")
    if plain and not any(char in plain for char in " \t\n\"'\\;"):
        return plain
    escaped = plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
