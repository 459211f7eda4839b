"""Builds the scripts that run on a host. This module is pure: it does no I/O.

The host's `sh` reads a script from standard input, so no list of processes shows the token.

A host holds one machine: a link `machine`, which is made in one step or not at all, names it. All that belongs to the
machine is in the folder of that name beside the link, and the link is removed after the folder.
"""

import shlex
from collections.abc import Mapping

KILL_AFTER_S = 60
"""A worker that was asked to stop gives its job back before that."""
LOG_BYTES = 16_000

_BEGIN = """umask 077
base="$HOME/.simpletuner-fleet"
there=$(readlink "$base/machine" 2>/dev/null)
folder="$base/$there"
alive() {
    pid=$(cat "$folder/pid" 2>/dev/null) && [ -n "$pid" ] &&
        tr '\\0' ' ' 2>/dev/null < "/proc/$pid/cmdline" | grep -qF "$folder/"
}
"""
_LOOK = """command -v {command} >/dev/null 2>&1 || [ -x "$base/venv/bin/simpletuner" ] && echo program
if [ -z "$there" ]; then echo free
elif [ ! -e "$folder/pid" ] || alive; then echo "runs $there"
else echo "ended $there"
fi
"""
_START = """name={name}
mkdir -p "$base" || exit 1
if ! ln -s -n "$name" "$base/machine" 2>/dev/null; then
    there=$(readlink "$base/machine")
    [ "$there" = "$name" ] || {{ echo "taken $there"; exit 0; }}
    [ ! -e "$base/$name/pid" ] || {{ echo made; exit 0; }}
fi
folder="$base/$name"
mkdir -p "$folder" || exit 1
cat > "$folder/run" <<'end of the file'
{run}
end of the file
if [ {service} = auto ] && [ "$(id -u)" = 0 ] && [ -d /run/systemd/system ]; then
    systemd-run --quiet --collect --unit="$name" -p KillMode=mixed -p Delegate=yes -p TimeoutStopSec={kill_after_s} \\
        -p "StandardOutput=append:$folder/log" -p "StandardError=append:$folder/log" \\
        --setenv=HOME="$HOME" --setenv=PATH="$PATH" sh "$folder/run" || exit 1
else
    setsid nohup sh "$folder/run" >> "$folder/log" 2>&1 < /dev/null &
fi
waited=0
while [ ! -s "$folder/pid" ] && [ $waited -lt 50 ]; do sleep 0.1; waited=$((waited + 1)); done
echo made
"""
_RUN = """echo $$ > "$HOME/.simpletuner-fleet/{name}/pid"
{exports}
program={command}
if ! command -v "$program" >/dev/null 2>&1; then
    program="$HOME/.simpletuner-fleet/venv/bin/simpletuner"
    [ -x "$program" ] || {{
        python3 -m venv "$HOME/.simpletuner-fleet/venv" &&
            "$HOME/.simpletuner-fleet/venv/bin/pip" install --quiet {install} || exit 1
    }}
fi
exec "$program" worker --work-dir "$HOME/.simpletuner-fleet/{name}/work\""""
_STOP = """[ "$there" = {name} ] || {{ echo gone; exit 0; }}
now=$(date +%s)
asked=$(cat "$folder/stopping" 2>/dev/null || echo "$now")
if alive && [ ! -e "$folder/stopping" ]; then  # asked twice, it would leave its job behind
    echo "$now" > "$folder/stopping"
    kill -TERM "$pid"
    echo stopping; exit 0
fi
if alive && [ $((now - asked)) -lt {kill_after_s} ]; then echo stopping; exit 0; fi
systemctl kill --signal=KILL {name}.service >/dev/null 2>&1
left=$(grep -laF "$folder/" /proc/[0-9]*/cmdline 2>/dev/null | tr -dc '0-9\\n')
[ -z "$left" ] || kill -KILL $left 2>/dev/null
rm -rf "$folder"
if [ -e "$folder" ]; then echo stopping; else rm -f "$base/machine"; echo gone; fi
"""
_LOG = """[ "$there" = {name} ] && tail -c {log_bytes} "$folder/log" 2>/dev/null
exit 0
"""


def look_script(command: str) -> str:
    return _BEGIN + _LOOK.format(command=shlex.quote(command))


def start_script(name: str, environment: Mapping[str, str], command: str, install: str, service: str) -> str:
    exports = "\n".join(f"export {key}={shlex.quote(value)}" for key, value in environment.items())
    quoted = (
        shlex.quote(install) if install else '"no such program, and the pool does not say how to install it"'
    )
    run = _RUN.format(name=name, exports=exports, command=shlex.quote(command), install=quoted)
    return _BEGIN + _START.format(name=name, run=run, service=service, kill_after_s=KILL_AFTER_S)


def stop_script(name: str) -> str:
    return _BEGIN + _STOP.format(name=name, kill_after_s=KILL_AFTER_S)


def log_script(name: str) -> str:
    return _BEGIN + _LOG.format(name=name, log_bytes=LOG_BYTES)
