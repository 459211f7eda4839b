"""When a training that ended with exit code 0 is not complete."""

import pytest

from simpletuner_fleet.core.training.completion import CleanExit, error_at_end, shortfall

TRACEBACK = """\
Traceback (most recent call last):
  File "/x/train.py", line 80, in <module>
    trainer.train()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""
CHAINED = """\
Traceback (most recent call last):
  File "/x/a.py", line 1, in f
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/x/b.py", line 2, in g
ValueError: no caption
"""


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (TRACEBACK, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
        (CHAINED, "ValueError: no caption"),
        ("[rank0]: " + TRACEBACK.replace("\n", "\n[rank0]: ").removesuffix("[rank0]: "), "torch.OutOfMemory"),
        (TRACEBACK + "trying again with a smaller batch\nsaved the model\n", None),
        ("KeyboardInterrupt\n", None),
        ("Traceback (most recent call last):\n", None),
        ("done\n", None),
        ("", None),
    ],
)
def test_a_traceback_is_an_end_only_where_nothing_follows_it(text: str, error: str | None) -> None:
    seen = error_at_end(text)
    assert seen is None if error is None else seen is not None and seen.startswith(error)


def test_helpers_may_still_speak_after_the_error_where_that_is_known() -> None:
    assert error_at_end(TRACEBACK + "stopping the fetcher\n", lines_after=1) is not None
    assert error_at_end(TRACEBACK + "one\ntwo\n", lines_after=1) is None


def test_a_training_that_stops_before_its_last_step_is_not_complete() -> None:
    assert shortfall(CleanExit(step=60, total=60)) is None
    assert shortfall(CleanExit(step=61, total=60)) is None
    assert shortfall(CleanExit(step=4, total=60)) == "the trainer ended at step 4 of 60 with exit code 0"
    assert shortfall(CleanExit(total=60)) == "the trainer ended at step 0 of 60 with exit code 0"
    assert shortfall(CleanExit(step=4)) is None


def test_the_error_is_told_with_the_step() -> None:
    reported = shortfall(CleanExit(step=4, total=60, last_lines=TRACEBACK))
    assert reported is not None
    assert reported.startswith(
        "the trainer ended at step 4 of 60 with exit code 0: torch.OutOfMemoryError: CUDA"
    )
    done = shortfall(CleanExit(step=60, total=60, last_lines=TRACEBACK))
    assert done is not None
    assert done.startswith("the trainer ended with an error and exit code 0: torch.OutOfMemoryError")
