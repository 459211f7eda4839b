"""Classifies why a trainer failed, by its exit code, its signal, the worker's report and the last log lines."""

import re
from collections.abc import Callable

from msgspec import Struct

from simpletuner_fleet.core.cutting import excerpt
from simpletuner_fleet.core.marks import N_

MAX_EVIDENCE_CHARS = 500

ADVICE = {
    "time_limit": N_(
        "Raise the job's time limit, or resume it from its last checkpoint with fewer steps left."
    ),
    "cost_limit": N_("Retry the job from its last checkpoint with a higher cost limit (--max-cost)."),
    "gpu_out_of_memory": N_(
        "Use a smaller batch or resolution, gradient checkpointing or a quantised model, or request GPUs "
        "with more memory (--min-vram)."
    ),
    "watchdog_nan": N_(
        "Lower the learning rate, clip gradients or look for broken samples; with --watchdog "
        "nan=restart-from-last-good a job returns to its last good checkpoint automatically."
    ),
    "watchdog_stall": N_(
        "Check the end of the log for what it is waiting for, or raise the watchdog's stall_s if a step "
        "can take this long."
    ),
    "disk_full": N_("Free space in the worker's work folder or keep fewer checkpoints, then retry."),
    "out_of_memory": N_(
        "System memory ran out: use fewer data loader workers, a smaller cache or a larger machine."
    ),
    "memory_limit": N_(
        "The job took more main memory than its worker lets a job have: use fewer data loader workers or a smaller cache, "
        "or have the worker's owner raise --job-memory-gb."
    ),
    "process_limit": N_(
        "The job had more processes and threads than its worker lets a job have: use fewer data loader workers, or have "
        "the worker's owner raise --job-pids."
    ),
    "cuda": N_(
        "Check the GPU with nvidia-smi on that worker; if other jobs fail there too, drain it and check "
        "its driver."
    ),
    "nccl": N_(
        "The job's processes lost contact with each other: find the rank that failed first, and check "
        "the link between the GPUs."
    ),
    "segfault": N_(
        "A native library crashed: check that torch, the driver and compiled packages on the worker are "
        "compatible."
    ),
    "import_error": N_(
        "Install the missing package in the worker's trainer Python (--trainer-python), then retry."
    ),
    "config": N_("Correct the named setting or argument in the config, then submit again."),
    "data": N_(
        "The job's data could not be put in place: see 'simpletuner data list', and the worker's --data-cache-gb and disk."
    ),
    "model_gated": N_(
        "Accept the model's terms on its page, and give the job a token that can read it: 'simpletuner "
        "secrets set HF_TOKEN', then reference it under secrets in the config."
    ),
    "model_missing": N_(
        "Correct the model name or path in the config: a path must exist on the worker, a name must be a "
        "repository the worker can reach."
    ),
    "captions_missing": N_(
        "Give every image a caption as the data loader's caption_strategy expects: for textfile, a .txt "
        "file beside it."
    ),
    "path_not_granted": N_(
        "The worker's owner decides what jobs may access on its disk, with 'simpletuner worker "
        "--job-path /data:ro'; or push the data with 'simpletuner data push' and write dataset://NAME "
        "instead of the path."
    ),
    "data_missing": N_(
        "The folder is missing on the worker: push it with 'simpletuner data push' and write "
        "dataset://NAME in the data loader, or correct the path."
    ),
    "file_missing": N_(
        "The config names a file that does not exist: put it beside the config and import it again, or "
        "write a path on the worker."
    ),
    "incomplete": N_(
        "The trainer ended before its last step and gave no reason: read the end of its log, or retry; "
        "the job resumes from its last checkpoint."
    ),
    "start_failed": N_("The trainer never ran: fix what the message names, in the config or on the worker."),
    "killed": N_(
        "Someone or something on the worker stopped the trainer: check that machine's system log, then retry."
    ),
    "user_code": N_(
        "The training code failed: read its log with `simpletuner jobs logs`, fix it and submit again."
    ),
    "unknown": N_("Read the log with `simpletuner jobs logs`; the trainer gave no reason for failing."),
}

_NAMES = "HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM"
SIGNALS = {number: f"SIG{name}" for number, name in enumerate(_NAMES.split(), start=1)}
SIGKILL, SIGSEGV, SIGBUS = 9, 11, 7

_PREFIX = re.compile(r"^(?:\[(?:rank ?|default)?\d+\]: ?)+")
_BAR = re.compile(r"\d{1,3}%\|[^|]{0,400}\|[^\[]{0,60}\[[^\]]{0,400}\]")
"""A progress bar ends no line: what is said next stands right behind it."""
_NOISE = re.compile(r"^raise \w|Warning: |\bWARNING\b(?!.{0,400}data directory was not found)")
"""The code in a traceback has names where its message has values, and what others warn of leads astray; but that the
data is not there is the cause of what follows."""
_EXCEPTION = re.compile(
    r"^(?:(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|NotFound)\b|Exception: )"
)
_LAUNCHER = re.compile(r"^(?:subprocess\.)?CalledProcessError|ChildFailedError")
_EARLY = re.compile(r"^the trainer ended (?:at step|with exit code 0 before)")
_EXIT_CODE = re.compile(r"\bexit(?:ed)?(?: with)?(?: (?:code|status))? (-?\d{1,3})\b")


class FailureClass(Struct, frozen=True):
    code: str
    evidence: str
    """The line that shows it, whole or with an ellipsis where it was cut."""
    advice: str


class FailureTrace(Struct, frozen=True):
    """Holds the evidence that an ended attempt left behind, in a form that the rules can examine."""

    exit_code: int | None
    signal: int | None
    reason: str
    """What the worker says of the end."""
    lines: tuple[str, ...]
    """The trainer's last ones, without ranks and bars before them, without warnings and lines of code."""
    started: bool


Rule = Callable[[FailureTrace], str | None]


def classify(
    exit_code: int | None,
    exit_signal: int | None,
    last_lines: str | None,
    reason: str | None,
    *,
    started: bool = False,
) -> FailureClass:
    """Returns the class of the first rule that finds evidence: what the worker did, then causes, then symptoms.

    `started` says that the worker has told that the trainer runs: a failure without a trace is then no failed start.
    """
    trace = _failure_trace(exit_code, exit_signal, last_lines or "", reason or "", started)
    for code, rule in RULES:
        if evidence := rule(trace):
            return FailureClass(code, excerpt(evidence, MAX_EVIDENCE_CHARS), ADVICE[code])
    return FailureClass("unknown", excerpt(trace.reason, MAX_EVIDENCE_CHARS), ADVICE["unknown"])


def advice_for(code: str) -> str:
    return ADVICE.get(code, ADVICE["unknown"])


def _failure_trace(
    exit_code: int | None, exit_signal: int | None, last_lines: str, reason: str, started: bool
) -> FailureTrace:
    """Returns the evidence, with an exit code or a signal that is only implied filled in.

    An agent that reports no exit code may name it in its sentence, and a shell reports a signal as 128 + its number.
    """
    if exit_code is None and exit_signal is None and (named := _EXIT_CODE.search(reason)):
        exit_code = int(named[1])
    if exit_signal is None and exit_code is not None:
        number = -exit_code if exit_code < 0 else exit_code - 128
        exit_signal = number if number in SIGNALS else None
    lines = (_without_bars(line.strip()) for line in re.split(r"[\r\n]+", last_lines))
    informative = tuple(line for line in lines if line and not _NOISE.search(line))
    return FailureTrace(exit_code, exit_signal, reason.strip(), informative, started)


def _without_bars(line: str) -> str:
    """Returns the text after the last progress bar, without the rank before it; a line of bars alone stays."""
    said = _BAR.split(line)[-1].strip() or line
    return _PREFIX.sub("", said)


def _said(pattern: str) -> Rule:
    """Returns a rule that looks for this pattern in what the worker reports."""
    known = re.compile(pattern)
    return lambda trace: trace.reason if known.search(trace.reason) else None


def _shown(pattern: str) -> Rule:
    """Returns a rule that finds the first line with this pattern.

    The first is the nearest to the cause: other ranks follow with noise.
    """
    known = re.compile(pattern)

    def shows(trace: FailureTrace) -> str | None:
        for line in (*trace.lines, trace.reason):
            if match := known.search(line):
                return excerpt(line, MAX_EVIDENCE_CHARS, around=match.start())
        return None

    return shows


def _ended_by(*signals: int) -> Rule:
    return lambda trace: _signal_sentence(trace) if trace.signal in signals else None


def _any_signal(trace: FailureTrace) -> str | None:
    return _signal_sentence(trace) if trace.signal else None


def _signal_sentence(trace: FailureTrace) -> str:
    assert trace.signal is not None
    named = f"ended by signal {trace.signal} ({SIGNALS.get(trace.signal, 'unnamed')})"
    if trace.signal == SIGKILL:
        return f"{named}, as the kernel does when memory runs out"
    return named


def _interrupted(trace: FailureTrace) -> str | None:
    last = _last_exception(trace)
    return last if last and last.startswith("KeyboardInterrupt") else None


def _wrong_usage(trace: FailureTrace) -> str | None:
    """Returns evidence that the arguments were wrong, since argument parsers exit with code 2."""
    if trace.exit_code != 2 or _last_exception(trace):
        return None
    return trace.lines[-1] if trace.lines else "exit code 2"


def _never_ran(trace: FailureTrace) -> str | None:
    if trace.exit_code in (126, 127):
        return trace.lines[-1] if trace.lines else f"exit code {trace.exit_code}"
    ran = trace.started or trace.exit_code is not None or trace.signal is not None or trace.lines
    return None if ran else trace.reason or None


def _ended_early(trace: FailureTrace) -> str | None:
    """Returns the worker's reason why an exit code of 0, which is no failure by itself, came too early."""
    if trace.exit_code != 0 or _last_exception(trace):
        return None
    return trace.reason if _EARLY.search(trace.reason) else None


def _raised(trace: FailureTrace) -> str | None:
    if last := _last_exception(trace):
        return last
    if trace.exit_code:
        return trace.lines[-1] if trace.lines else f"exit code {trace.exit_code}"
    return None


def _last_exception(trace: FailureTrace) -> str | None:
    """Returns the last exception; one of a launcher, which says only that its child had one, is the last resort."""
    raised = [line for line in trace.lines or (trace.reason,) if _EXCEPTION.match(line)]
    causes = [line for line in raised if not _LAUNCHER.search(line)]
    return next(reversed(causes or raised), None)


RULES: tuple[tuple[str, Rule], ...] = (
    ("watchdog_nan", _said(r"^watchdog: the loss\b")),
    ("watchdog_stall", _said(r"^watchdog: no step\b")),
    ("disk_full", _said(r"^watchdog: .*\bdisk\b")),
    ("time_limit", _said(r"^the time limit\b.* was reached")),
    ("cost_limit", _said(r"^its job was about to pass its cost limit\b")),
    ("memory_limit", _said(r"^the job reached the memory limit\b")),
    (
        "killed",
        _said(r"\b(?:was stopped on its worker|its (?:guardian|supervisor) were killed|agent died)\b"),
    ),
    (
        "gpu_out_of_memory",
        _shown(
            r"(?:CUDA|HIP) out of memory|MPS backend out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY"
            r"|cudaErrorMemoryAllocation|torch\.(?:cuda\.)?OutOfMemoryError|CU(?:BLAS|DNN)_STATUS_ALLOC_FAILED"
            r"|Cuda failure (?:\d+ )?'out of memory'|RESOURCE_EXHAUSTED: .{0,200}[Oo]ut of memory"
        ),
    ),
    (
        "disk_full",
        _shown(
            r"No space left on device|Disk quota exceeded|database or disk is full|\bENOSPC\b"
            r"|PytorchStreamWriter failed writing file"
        ),
    ),
    (
        "out_of_memory",
        _shown(
            r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|^(?:\w+\.)*_?(?:Array)?MemoryError\b"
            r"|Cannot allocate memory|std::bad_alloc|Out of memory: Killed process|oom[-_]kill"
            r"|Signal 9 \(SIGKILL\) received|died with <Signals\.SIGKILL|is killed by signal: (?:Killed|Bus error)"
            r"|out of shared memory|unable to (?:allocate|open|mmap) shared memory"
        ),
    ),
    ("process_limit", _said(r"^the job reached the process limit\b")),
    (
        "cuda",
        _shown(
            r"(?:CUDA|HIP)(?: driver)? error:|CUDA unknown error|cuDNN error|CU(?:DNN|BLAS|SOLVER|SPARSE)_STATUS_(?!SUCCESS)"
            r"|\bcudaError\w+|CUDA driver version is insufficient|Found no NVIDIA driver|No CUDA GPUs are available"
            r"|Driver/library version mismatch|not compiled with CUDA enabled|uncorrectable ECC error|GPU is lost"
            r"|fallen off the bus|\bXid\b"
        ),
    ),
    (
        "nccl",
        _shown(
            r"NCCL error|\bnccl(?:Unhandled|System|Internal|Remote|Invalid)\w*|Watchdog caught collective operation timeout"
            r"|DistBackendError|DistStoreError|DistNetworkError|Rendezvous\w{0,60}Error|\bEADDRINUSE\b|\bgloo\b.{0,200}(?:failed|closed)"
        ),
    ),
    (
        "segfault",
        _shown(
            r"Segmentation fault|Signal (?:11 \(SIGSEGV\)|7 \(SIGBUS\)) received|died with <Signals\.(?:SIGSEGV|SIGBUS)"
        ),
    ),
    ("segfault", _ended_by(SIGSEGV, SIGBUS)),
    ("killed", _interrupted),
    ("out_of_memory", _ended_by(SIGKILL)),
    ("killed", _any_signal),
    (
        "import_error",
        _shown(
            r"^(?:ModuleNotFoundError|ImportError): |: No module named |error while loading shared libraries"
        ),
    ),
    (
        "model_gated",
        _shown(
            r"GatedRepo(?:Error)?\b|gated repo|Access to model .{0,200} is restricted"
            r"|(?:401|403) Client Error.{0,200}huggingface\.co"
        ),
    ),
    (
        "model_missing",
        _shown(
            r"it looks like \S+ is not the path to a directory|is not a local folder and is not a valid model identifier"
            r"|does not appear to have a file named|RepositoryNotFoundError|404 Client Error.{0,200}huggingface\.co"
            r"|Repo id must be in the form|Can't load (?:the )?(?:model|tokenizer|config)\w* for '"
        ),
    ),
    (
        "captions_missing",
        _shown(
            r"Caption file \S+ not found|Caption text cannot be (?:None|empty)|[Nn]o captions? (?:was |were )?found"
            r"|Could not (?:find|load) (?:any )?captions?\b"
        ),
    ),
    (
        "data_missing",
        _shown(
            r"data directory was not found: |^- \(id=[^)]*\) \w+: /|instance_data_dir\b.{0,400}(?:not exist|not found)"
        ),
    ),
    (
        "file_missing",
        _shown(
            r"config file \S+ not found|^(?:ValueError: )?Lycoris config path '[^']*' is invalid"
            r"|Could not find (?:lycoris config|the JSON configuration file) at '|Parquet file \S+ not found"
        ),
    ),
    # What the line above names is what the config says; this one may name a folder on the way there.
    ("file_missing", _shown(r"FileNotFoundError: \[Errno 2\] No such file or directory: '")),
    ("config", _shown(r"^ValueError: Optimizer \S+ not found|invalid choice: '")),
    (
        "config",
        _shown(
            r"\.py: error: |: error: (?:unrecognized arguments|the following arguments are required|argument )"
            r"|can't open file '"
        ),
    ),
    ("path_not_granted", _said(r" names .{0,1000} (?:not granted to jobs|may not be read by jobs)")),
    ("config", _said(r"^(?:settings|env|files)\b|config's settings")),
    ("config", _wrong_usage),
    ("data", _said(r"^the data\b")),
    ("start_failed", _never_ran),
    ("incomplete", _ended_early),
    ("user_code", _raised),
)
