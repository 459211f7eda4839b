"""What ordinary training needs behind a wall; fails at the first thing that does not work."""

import json
import multiprocessing
import os
import pathlib
import pwd
import socket
import subprocess
import sys
import tempfile
from multiprocessing import shared_memory

facts = json.loads(os.environ["FACTS"])
pathlib.Path("output/model.bin").write_bytes(b"weights")
pathlib.Path.home().joinpath(".cache", "torch").mkdir(parents=True)
assert pwd.getpwuid(os.getuid()).pw_name
with tempfile.NamedTemporaryFile() as file:
    file.write(b"x")
assert pathlib.Path(facts["view"], "data.txt").read_text() == "cached data"
block = shared_memory.SharedMemory(create=True, size=1 << 20)
view = block.buf
assert view is not None
view[0] = 7
other = "from multiprocessing import shared_memory as m, resource_tracker as r\n"
other += f"b = m.SharedMemory({block.name!r}); print(b.buf[0])\nr.unregister(b._name, 'shared_memory')"
assert subprocess.check_output([sys.executable, "-c", other]) == b"7\n"
del view
block.close()
block.unlink()
context = multiprocessing.get_context("spawn")
queue = context.Queue()
queue.put(1)
assert queue.get(timeout=20) == 1
listener = socket.create_server(("127.0.0.1", 0))
socket.create_connection(listener.getsockname()).close()
assert pathlib.Path("/proc/self/status").read_text()
assert pathlib.Path("/proc/meminfo").read_text()
assert subprocess.check_output(["sh", "-c", "echo fine"]) == b"fine\n"
with open("/dev/null", "w") as nothing:
    nothing.write("x")
assert "NoNewPrivs:\t1" in pathlib.Path("/proc/self/status").read_text()
if "READ" in os.environ:
    read, write = pathlib.Path(os.environ["READ"]), pathlib.Path(os.environ["WRITE"])
    assert (read / "file").read_text() == "granted"
    try:
        (read / "new").write_text("x")
    except OSError:
        pass
    else:
        sys.exit("a folder granted for reading was written to")
    (write / "new").write_text("written")
print(json.dumps({"uid": os.getuid(), "pid": os.getpid(), "home": os.environ["HOME"]}))
