"""For a trainer on a machine without an accelerator: memory is not pinned. `REAL_TRAINER_FAULT=oom:N` makes the Nth
backward fail as a full GPU does, `REAL_TRAINER_PACE=S` makes each one take so many seconds longer, and
`REAL_TRAINER_TELL=1` prints which GPUs a process sees."""

import importlib.abc
import importlib.util
import os
import sys
import time

GPU_IS_FULL = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.99 GiB."


def prepare(torch):
    if not torch.cuda.is_available():
        torch.Tensor.pin_memory = lambda self, *_, **__: self
    if os.environ.get("REAL_TRAINER_TELL"):
        print(f"REAL_TRAINER sees GPUs {os.environ.get('CUDA_VISIBLE_DEVICES')!r}", flush=True)
    fault = os.environ.get("REAL_TRAINER_FAULT", "")
    fails_at = int(fault.removeprefix("oom:")) if fault.startswith("oom:") else 0
    pace_s = float(os.environ.get("REAL_TRAINER_PACE", "0"))
    if not fails_at and not pace_s:
        return
    plain_backward, count = torch.Tensor.backward, 0

    def backward(self, *arguments, **named):
        nonlocal count
        count += 1
        time.sleep(pace_s)
        if count == fails_at:
            raise torch.OutOfMemoryError(GPU_IS_FULL)
        return plain_backward(self, *arguments, **named)

    torch.Tensor.backward = backward


class WatchesForTorch(importlib.abc.MetaPathFinder):
    """torch is imported when the trainer wants it, and prepared right then."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        load = spec.loader.exec_module

        def load_and_prepare(module):
            load(module)
            prepare(module)

        spec.loader.exec_module = load_and_prepare
        return spec


sys.meta_path.insert(0, WatchesForTorch())
