"""Endings as trainers really leave them, and what they are taken for."""

import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpletuner_fleet.core.jobs import lifecycle
from simpletuner_fleet.core.jobs.failure import ADVICE, MAX_EVIDENCE_CHARS, RULES, advice_for, classify
from simpletuner_fleet.core.jobs.job import JobState, Outcome
from simpletuner_fleet.core.jobs.lifecycle import End
from tests.core.builders import NOW, POLICY, an_attempt, holding

ELASTIC = """
Traceback (most recent call last):
  File "/usr/lib/python3.11/runpy.py", line 198, in _run_module_as_main
    return _run_code(code, main_globals, None,
  File "/venv/torch/distributed/run.py", line 883, in run
    elastic_launch(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-02_10:11:12
  host      : gpu-3
  rank      : 0 (local_rank: 0)
  exitcode  : {exitcode} (pid: 4711)
  error_file: <N/A>
  traceback : {traceback}
============================================================
"""
PLAIN_ELASTIC = ELASTIC.format(exitcode=1, traceback="To enable traceback see: https://pytorch.org/docs")
SIGKILL_ELASTIC = ELASTIC.format(exitcode=-9, traceback="Signal 9 (SIGKILL) received by PID 4711")
SIGSEGV_ELASTIC = ELASTIC.format(exitcode=-11, traceback="Signal 11 (SIGSEGV) received by PID 4711")
CALLED_PROCESS = (
    "Traceback (most recent call last):\n"
    '  File "/venv/accelerate/commands/launch.py", line 1227, in simple_launcher\n'
    "    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)\n"
    "subprocess.CalledProcessError: Command '['python', 'train.py']' {how}."
)
CUDA_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB "
    "of which 1.12 GiB is free."
)
OLD_CUDA_OOM = (
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.93 GiB total capacity)"
)
WATCHDOG = (
    "[E ProcessGroupNCCL.cpp:474] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, "
    "OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800651 milliseconds before timing out."
)
NCCL_SYSTEM = (
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error."
)
ILLEGAL = "RuntimeError: CUDA error: an illegal memory access was encountered"
DRIVER = "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU"
CUDNN = "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"
NO_SPACE = "OSError: [Errno 28] No space left on device: '/data/output/checkpoint-500/model.safetensors'"
LOADER_KILLED = "RuntimeError: DataLoader worker (pid 3141) is killed by signal: Killed."
NO_MODULE = "ModuleNotFoundError: No module named 'bitsandbytes'"
ARGPARSE = "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --learning-rat 1e-4"
USER = (
    "Traceback (most recent call last):\n"
    '  File "train.py", line 8, in <module>\n    main()\n'
    "ValueError: expected 3 channels, got 4"
)


@pytest.mark.parametrize(
    ("exit_code", "signal", "lines", "reason", "code", "evidence"),
    [
        # The worker says it.
        (None, 9, "step 12", "the time limit was reached", "time_limit", "the time limit was reached"),
        (None, 15, CUDA_OOM, "watchdog: the loss was NaN at step 6", "watchdog_nan", "NaN at step 6"),
        (0, None, "", "watchdog: the loss was infinite at step 6", "watchdog_nan", "infinite at step 6"),
        (None, 9, "", "watchdog: no step for 30 min after step 9", "watchdog_stall", "no step for 30 min"),
        (None, 15, "", "watchdog: the worker's disk is nearly full: 1 GB", "disk_full", "nearly full"),
        (None, 15, CUDA_OOM, "the time limit of 60 s was reached", "time_limit", "the time limit of 60 s"),
        (None, 9, "", "the trainer was stopped on its worker", "killed", "was stopped on its worker"),
        (None, None, "", "the trainer and its supervisor were killed", "killed", "supervisor were killed"),
        # Memory of the GPU.
        (1, None, f"Traceback\n{CUDA_OOM}", None, "gpu_out_of_memory", CUDA_OOM),
        (1, None, OLD_CUDA_OOM, None, "gpu_out_of_memory", "Tried to allocate 20.00 MiB"),
        (
            1,
            None,
            f"[rank0]: {CUDA_OOM}\n{PLAIN_ELASTIC}",
            None,
            "gpu_out_of_memory",
            "torch.OutOfMemoryError",
        ),
        (1, None, "RuntimeError: CUDA error: out of memory", None, "gpu_out_of_memory", "out of memory"),
        (
            1,
            None,
            "CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`",
            None,
            "gpu_out_of_memory",
            "ALLOC",
        ),
        (
            1,
            None,
            "ncclUnhandledCudaError: x\nCuda failure 2 'out of memory'",
            None,
            "gpu_out_of_memory",
            "Cuda",
        ),
        (
            1,
            None,
            "RuntimeError: MPS backend out of memory (MPS allocated: 8 GB)",
            None,
            "gpu_out_of_memory",
            "MPS",
        ),
        (-9, None, f"{CUDA_OOM}\n{WATCHDOG}", None, "gpu_out_of_memory", CUDA_OOM),
        # The disk.
        (1, None, NO_SPACE, None, "disk_full", NO_SPACE),
        (
            1,
            None,
            'IoError(Os { code: 28, message: "No space left on device" })',
            None,
            "disk_full",
            "code: 28",
        ),
        (1, None, "OSError: [Errno 122] Disk quota exceeded", None, "disk_full", "quota"),
        (
            1,
            None,
            "RuntimeError: PytorchStreamWriter failed writing file data/3",
            None,
            "disk_full",
            "Writer",
        ),
        (
            None,
            None,
            "",
            "the worker could not prepare the job: No space left on device",
            "disk_full",
            "prepare",
        ),
        # Main memory.
        (137, None, "Killed", None, "out_of_memory", "signal 9 (SIGKILL)"),
        (-9, None, "step 3", None, "out_of_memory", "signal 9 (SIGKILL)"),
        (None, 9, "", None, "out_of_memory", "as the kernel does when memory runs out"),
        (1, None, SIGKILL_ELASTIC, None, "out_of_memory", "Signal 9 (SIGKILL) received by PID 4711"),
        (
            1,
            None,
            CALLED_PROCESS.format(how="died with <Signals.SIGKILL: 9>"),
            None,
            "out_of_memory",
            "SIGKILL",
        ),
        (1, None, LOADER_KILLED, None, "out_of_memory", LOADER_KILLED),
        (1, None, "MemoryError", None, "out_of_memory", "MemoryError"),
        (
            1,
            None,
            "numpy._core._exceptions._ArrayMemoryError: Unable to allocate",
            None,
            "out_of_memory",
            "numpy",
        ),
        (1, None, "OSError: [Errno 12] Cannot allocate memory", None, "out_of_memory", "Errno 12"),
        (
            None,
            6,
            "terminate called after throwing an instance of 'std::bad_alloc'",
            None,
            "out_of_memory",
            "bad",
        ),
        # The GPU and its driver.
        (1, None, ILLEGAL, None, "cuda", ILLEGAL),
        (None, 6, f"{ILLEGAL}\nterminate called after throwing", None, "cuda", ILLEGAL),
        (1, None, f"{ILLEGAL}\n{WATCHDOG}", None, "cuda", ILLEGAL),
        (1, None, CUDNN, None, "cuda", CUDNN),
        (1, None, DRIVER, None, "cuda", "Found no NVIDIA driver"),
        (1, None, "RuntimeError: No CUDA GPUs are available", None, "cuda", "No CUDA GPUs"),
        (1, None, "RuntimeError: CUDA error: uncorrectable ECC error encountered", None, "cuda", "ECC"),
        (1, None, "Failed to initialize NVML: Driver/library version mismatch", None, "cuda", "mismatch"),
        # Between the processes.
        (None, 6, WATCHDOG, None, "nccl", "Watchdog caught collective operation timeout"),
        (
            1,
            None,
            f"torch.distributed.DistBackendError: NCCL error in: x.cpp\n{NCCL_SYSTEM}",
            None,
            "nccl",
            "NCCL",
        ),
        (
            1,
            None,
            "DistNetworkError: The server socket has failed to listen (EADDRINUSE)",
            None,
            "nccl",
            "EADDR",
        ),
        # Crashes of native code.
        (None, 11, "", None, "segfault", "signal 11 (SIGSEGV)"),
        (139, None, "Segmentation fault (core dumped)", None, "segfault", "Segmentation fault"),
        (-11, None, "step 1", None, "segfault", "SIGSEGV"),
        (1, None, SIGSEGV_ELASTIC, None, "segfault", "Signal 11 (SIGSEGV) received"),
        (1, None, CALLED_PROCESS.format(how="died with <Signals.SIGSEGV: 11>"), None, "segfault", "SIGSEGV"),
        # Stopped by somebody.
        (None, 15, "step 4", None, "killed", "signal 15 (SIGTERM)"),
        (143, None, "", None, "killed", "SIGTERM"),
        (130, None, "Traceback\nKeyboardInterrupt", None, "killed", "KeyboardInterrupt"),
        (1, None, "Traceback\nKeyboardInterrupt", None, "killed", "KeyboardInterrupt"),
        (None, 64, "", None, "killed", "signal 64 (unnamed)"),
        # What is not installed.
        (1, None, f"Traceback\n{NO_MODULE}", None, "import_error", NO_MODULE),
        (1, None, "/usr/bin/python3: No module named accelerate", None, "import_error", "accelerate"),
        (
            1,
            None,
            "ImportError: libcudart.so.12: cannot open shared object file",
            None,
            "import_error",
            "libcudart",
        ),
        (1, None, f"{NO_MODULE}\n" + CALLED_PROCESS.format(how="x"), None, "import_error", NO_MODULE),
        # What was asked for wrongly.
        (2, None, ARGPARSE, None, "config", "unrecognized arguments: --learning-rat"),
        (1, None, f"{ARGPARSE}\n" + CALLED_PROCESS.format(how="x"), None, "config", "unrecognized arguments"),
        (2, None, "python: can't open file '/data/train.py': [Errno 2]", None, "config", "/data/train.py"),
        (2, None, "", None, "config", "exit code 2"),
        (2, None, "wrong usage", None, "config", "wrong usage"),
        (None, None, "", "settings.script: there is no file 'train.py'", "config", "settings.script"),
        # What never ran.
        (
            None,
            None,
            "",
            "the worker could not start a process: no memory",
            "start_failed",
            "could not start",
        ),
        (127, None, "sh: 1: trainer: not found", None, "start_failed", "trainer: not found"),
        (126, None, "", None, "start_failed", "exit code 126"),
        # What the code itself did.
        (1, None, USER, None, "user_code", "ValueError: expected 3 channels, got 4"),
        (1, None, f"[rank0]: {USER}\n{PLAIN_ELASTIC}", None, "user_code", "ValueError: expected 3"),
        (1, None, f"{USER}\n" + CALLED_PROCESS.format(how="x"), None, "user_code", "ValueError: expected 3"),
        (
            1,
            None,
            "Exception: 3.png has no metadata\n" + CALLED_PROCESS.format(how="x"),
            None,
            "user_code",
            "3.png",
        ),
        (2, None, USER, None, "user_code", "ValueError: expected 3"),
        (1, None, PLAIN_ELASTIC, None, "user_code", "ChildFailedError"),
        (3, None, "step 9\nnothing to train on", None, "user_code", "nothing to train on"),
        (3, None, "", None, "user_code", "exit code 3"),
        (None, None, "", "Training failed with exit code 5", "user_code", "exit code 5"),
        # A warning is no cause.
        (1, None, f"UserWarning: CUDA error: x\n{USER}", None, "user_code", "ValueError"),
        (1, None, f"[rank0]: WARNING NCCL error ignored\n{USER}", None, "user_code", "ValueError"),
        # Nothing to go by.
        (None, None, "", None, "unknown", ""),
        (None, None, "step 3", "gone", "unknown", "gone"),
        (0, None, "fine", None, "unknown", ""),
    ],
)
def test_an_ending_is_taken_for_what_it_was(
    exit_code: int | None, signal: int | None, lines: str, reason: str | None, code: str, evidence: str
) -> None:
    failure = classify(exit_code, signal, lines, reason)
    assert failure.code == code, failure
    assert evidence in failure.evidence
    assert failure.advice == ADVICE[code]


PRECEDENCE = [
    ("gpu_out_of_memory", CUDA_OOM),
    ("disk_full", NO_SPACE),
    ("out_of_memory", LOADER_KILLED),
    ("cuda", ILLEGAL),
    ("nccl", WATCHDOG),
    ("segfault", "Segmentation fault (core dumped)"),
    ("import_error", NO_MODULE),
    ("config", ARGPARSE),
    ("user_code", USER),
]


@pytest.mark.parametrize("first", range(len(PRECEDENCE)))
def test_a_cause_goes_before_what_follows_from_it_wherever_it_stands(first: int) -> None:
    for lines in (PRECEDENCE[first:], PRECEDENCE[first:][::-1]):
        assert classify(1, None, "\n".join(line for _, line in lines), None).code == PRECEDENCE[first][0]


def test_what_the_worker_did_goes_before_what_the_trainer_said() -> None:
    everything = "\n".join(line for _, line in PRECEDENCE)
    assert classify(1, 9, everything, "the time limit was reached").code == "time_limit"
    assert classify(1, 9, everything, "the trainer was stopped on its worker").code == "killed"


def test_a_trainer_that_ran_and_left_no_trace_has_not_failed_to_start() -> None:
    assert classify(None, None, None, "it broke", started=True).code == "unknown"
    assert classify(None, None, None, "ValueError: no images", started=True).code == "user_code"
    assert classify(None, None, None, "it broke", started=False).code == "start_failed"


def test_progress_bars_and_rank_prefixes_do_not_hide_the_line() -> None:
    lines = f"10%|#  | 1/10\r20%|## | 2/10\r[rank3]: {CUDA_OOM}"
    assert classify(1, None, lines, None).evidence == CUDA_OOM


def test_what_is_said_right_behind_a_progress_bar_is_the_line_without_the_bar() -> None:
    bar = "Epoch 1/1, Steps:  50%|█████     | 4/8 [01:02<00:34,  8.57s/it, lr=0.001, step_loss=1.12]"
    assert classify(1, None, f"{bar}\r{bar}[rank0]: {CUDA_OOM}", None).evidence == CUDA_OOM
    assert (
        classify(0, None, f"{bar}ValueError: no", "the trainer ended at step 4 of 8").evidence
        == "ValueError: no"
    )
    assert classify(1, None, bar, None).evidence == bar


def test_evidence_is_one_line_of_bounded_length() -> None:
    failure = classify(1, None, "CUDA out of memory " + "x" * 5_000, None)
    assert len(failure.evidence) == MAX_EVIDENCE_CHARS
    assert failure.evidence.startswith("CUDA out of memory x")
    assert failure.evidence.endswith("x…")


def test_of_a_missing_file_the_line_is_told_that_names_all_of_its_path() -> None:
    """As SimpleTuner 4.10.1 says it: first the system's words, which name the folder alone."""
    lines = (
        "FileNotFoundError: [Errno 2] No such file or directory: '/x'\n"
        "During handling of the above exception, another exception occurred:\n"
        "ValueError: Lycoris config path '/x/no-lycoris.json' is invalid or outside allowed directory.\n"
    )
    failure = classify(1, None, lines, None)
    assert (failure.code, "/x/no-lycoris.json" in failure.evidence) == ("file_missing", True)


def test_of_a_longer_line_the_part_that_shows_it_is_told() -> None:
    evidence = classify(1, None, "x" * 5_000 + CUDA_OOM + "y" * 5_000, None).evidence
    assert CUDA_OOM in evidence
    assert (len(evidence), evidence[0], evidence[-1]) == (MAX_EVIDENCE_CHARS, "…", "…")


def test_every_class_has_advice_in_one_sentence_and_an_unknown_one_has_some_too() -> None:
    assert {code for code, _ in RULES} | {"unknown"} == set(ADVICE)
    assert all(advice.endswith(".") and ". " not in advice for advice in ADVICE.values())
    assert advice_for("from_a_newer_version") == ADVICE["unknown"]


@given(
    st.none() | st.integers(-300, 300),
    st.none() | st.integers(-5, 80),
    st.none() | st.text(string.printable, max_size=300),
    st.none() | st.text(max_size=50),
)
def test_any_ending_has_a_class(
    code: int | None, signal: int | None, lines: str | None, reason: str | None
) -> None:
    failure = classify(code, signal, lines, reason)
    assert failure.code in ADVICE
    assert "\n" not in failure.evidence or "\n" in (reason or "")


def test_a_failed_attempt_keeps_its_class_and_the_audit_log_tells_it() -> None:
    end = End(exit_code=1, last_lines=CUDA_OOM)
    decision = lifecycle.failed(holding(), an_attempt(accepted_at=NOW), end, POLICY, now=NOW)
    assert decision.attempt is not None
    assert (decision.attempt.failure_class, decision.attempt.failure_evidence) == (
        "gpu_out_of_memory",
        CUDA_OOM,
    )
    details = decision.events[-1].details
    assert (details["failure_class"], details["failure_evidence"]) == ("gpu_out_of_memory", CUDA_OOM)


def test_a_lost_worker_is_no_failure_of_the_trainer() -> None:
    job = holding(max_retries=0)
    decision = lifecycle.lost(job, an_attempt(accepted_at=NOW), "silent", POLICY, now=NOW)
    assert decision.job is not None
    assert decision.attempt is not None
    assert (decision.job.state, decision.attempt.outcome) == (JobState.FAILED, Outcome.LOST)
    assert decision.attempt.failure_class is None
    assert "failure_class" not in decision.events[-1].details


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "a.",
        "Warning:",
        "WARNING ",
        "WARNING data directory ",
        "RESOURCE_EXHAUSTED: ",
        "Rendezvous",
        "gloo ",
        "Access to model ",
        "404 Client Error",
        "instance_data_dir ",
        " names ",
        "watchdog: ",
        "1%|",
        "1%||[",
    ],
)
def test_a_long_line_is_classified_at_once(piece: str) -> None:
    line = (piece * 16_000)[:16_000]
    began = time.process_time()
    classify(1, None, line, line[:4_000], started=True)
    assert time.process_time() - began < 0.2
