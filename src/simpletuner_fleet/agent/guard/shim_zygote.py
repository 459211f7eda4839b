"""Forks shims from one Python process that has imported all they need, so that none has to be started from nothing.

It is a program of its own, run as `python -I -S shim_zygote.py` with one end of a socket pair of packets as stdin; it
uses the standard library only, Linux only, and a single thread. Each packet brings one end of the connection to a new
shim, and is answered with the shim's process id and a descriptor of its process. Nothing else is ever said to it: no
order, no secret and no descriptor of an attempt is in its memory when it forks the next. It ends when the agent does;
its shims do not.
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import socket
import struct
import sys

PR_SET_DUMPABLE = 4
ANSWER = struct.Struct("=i")
"""A process's number, or an error's, as a negative one."""


def main() -> None:
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    shim = __import__("shim")
    # Whoever could look into it could look into every guardian that comes of it.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    agent = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.closerange(3, agent.fileno())
    os.closerange(agent.fileno() + 1, 65536)
    shim.load_parts()
    gc.freeze()  # what is here stays as it is, and its pages shared
    line = fork_on_demand(agent)
    if line is not None:
        shim.guard(line)


def fork_on_demand(agent: socket.socket) -> socket.socket | None:
    """Returns in each forked process, with its connection; and in this one, with None, when the agent is gone."""
    os.close(os.pidfd_open(os.getpid()))  # where there are none, it ends before it has forked anything
    woken, wake = os.pipe()
    for descriptor in (woken, wake):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    poll = select.poll()
    poll.register(agent, select.POLLIN)
    poll.register(woken, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if woken in ready:
            os.read(woken, 4096)
            reap()
        if agent.fileno() not in ready:
            continue
        packet, descriptors, _, _ = socket.recv_fds(agent, 1, 1)
        if not packet or not descriptors:
            return None
        os.set_inheritable(descriptors[0], False)  # older versions of Python ignore the flag that says so
        with socket.socket(fileno=descriptors[0]) as line:
            pid = forked(agent)
            if pid == 0:
                signal.set_wakeup_fd(-1)
                agent.close()
                for descriptor in (woken, wake):
                    os.close(descriptor)
                return socket.socket(fileno=line.detach())


def forked(agent: socket.socket) -> int:
    """Returns 0 in the new process; this one has told the agent of it, or why there is none."""
    try:
        pid = os.fork()
    except OSError as error:
        agent.sendall(ANSWER.pack(-(error.errno or 1)))
        return -1
    if pid:
        # Nobody has waited for it yet, so its number is still its own, also if it has ended.
        process = os.pidfd_open(pid)
        try:
            socket.send_fds(agent, [ANSWER.pack(pid)], [process])
        finally:
            os.close(process)
    return pid


def reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


if __name__ == "__main__":
    main()
