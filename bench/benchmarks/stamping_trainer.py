"""A trainer that notes the time at its first and its last instruction and waits in between."""

import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

STARTED, ENDED = "S", "E"
SOURCE = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
static void note(const char *path, char kind, struct timespec at) {
    char line[64];
    int length = snprintf(line, sizeof line, "%c %lld%09ld\n", kind, (long long)at.tv_sec, at.tv_nsec);
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (write(file, line, length) != length) _exit(1);
    close(file);
}
int main(int argc, char **argv) {
    struct timespec started, ended;
    clock_gettime(CLOCK_REALTIME, &started);
    if (argc != 3) return 2;
    umask(0);
    note(argv[1], 'S', started);
    long longest_us = atol(argv[2]) * 1000;
    if (longest_us) usleep(started.tv_nsec / 1000 % longest_us);
    clock_gettime(CLOCK_REALTIME, &ended);
    note(argv[1], 'E', ended);
    return 0;
}
"""
WITHOUT_COMPILER = 'umask 0; echo "S $(date +%s%N)" >>"$0"; sleep 0.1; echo "E $(date +%s%N)" >>"$0"'


class TrainerRun(NamedTuple):
    """One run of the trainer, in nanoseconds since 1970."""

    started_ns: int
    ended_ns: int


def command(folder: Path, stamps: Path, longest_ms: int) -> list[str]:
    """A compiled program where there is a compiler; it waits any time below `longest_ms`."""
    compiler = shutil.which("cc")
    if compiler is None:
        return ["/bin/sh", "-c", WITHOUT_COMPILER, str(stamps)]
    source, program = folder / "stamp.c", folder / "stamp"
    if not program.exists():
        source.write_text(SOURCE)
        subprocess.run([compiler, "-O2", "-o", str(program), str(source)], check=True)
    return [str(program), str(stamps), str(longest_ms)]


def read_runs(text: str) -> list[TrainerRun]:
    """Pairs starts and ends of trainers that ran one after another."""
    stamps = [line.split() for line in text.splitlines()]
    starts = sorted(int(at) for kind, at in stamps if kind == STARTED)
    ends = sorted(int(at) for kind, at in stamps if kind == ENDED)
    return [TrainerRun(*pair) for pair in zip(starts, ends, strict=True)]


def gaps_ms(runs: list[TrainerRun]) -> list[float]:
    """Returns how long after each end the next trainer started."""
    return [(later.started_ns - earlier.ended_ns) / 1e6 for earlier, later in pairwise(runs)]
