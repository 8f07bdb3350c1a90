"""The first lines that run in a worker's interpreter: as many threads as it runs calls at once, then the public worker.

The node hands the text of this file to the worker's Python (`-c`), so nothing of ours is installed where user code
runs; nothing may import it. The public worker puts synchronous calls into the default thread pool of asyncio,
min(32, cpus + 4) threads, however many calls it was told to run at once: the others would wait in the worker with their
deadlines running. The pool here has a thread for each call beside those that asyncio gives to everything else
(docs/decisions/0014-a-thread-for-each-call.md).

    argv: [GRANT_FD]

With a descriptor, the worker is a warm one (`warm.py`): it imports what the public worker imports before any code of a
user, no more, and then waits for its folder and variables. Those that mean something only to an interpreter that starts
with them are given to a new one, in the same process.
"""

import asyncio
import importlib
import os
import runpy
import sys
from concurrent.futures import ThreadPoolExecutor

FOR_A_NEW_INTERPRETER = (
    *(b"PYTHON", b"LD_", b"LC_", b"LANG", b"TZ", b"MALLOC_", b"GLIBC_", b"OPENSSL_", b"SSL_"),
    b"SYNCHRONICITY_",
)
"""Names, by how they begin, that are read when the interpreter, the C library or a module of the worker starts."""


def be_granted(descriptor: int) -> None:
    """Wait for the orders and become what they say; without any, the node has no use for this worker."""
    with open(descriptor, "rb") as pipe:
        orders = pipe.read()
    if not orders:
        sys.exit("nodus: the worker was let go before it was anybody's")
    directory, *fields = orders.split(b"\0")
    granted = dict(field.split(b"=", 1) for field in fields)
    try:
        os.makedirs(directory, exist_ok=True)
        os.chdir(directory)
    except OSError as error:
        sys.exit(f"nodus: the working directory cannot be used: {error}")
    if early(granted) != early(os.environb):
        os.execve(sys.executable, [sys.executable, "-c", sys.orig_argv[2]], granted)  # noqa: S606 - that is the point
    os.environ.clear()
    os.environb.update(granted)
    # What lies in the folder now was perhaps not there when the path was last looked at.
    importlib.invalidate_caches()


def early(variables: "os._Environ[bytes] | dict[bytes, bytes]") -> "dict[bytes, bytes]":
    """Those of these variables that only a new interpreter obeys."""
    return {name: value for name, value in variables.items() if name.startswith(FOR_A_NEW_INTERPRETER)}


if len(sys.argv) > 1:
    importlib.import_module("nodus._runtime.functions")
    be_granted(int(sys.argv.pop()))

ASYNCIO_THREADS = min(32, (os.cpu_count() or 1) + 4)
THREADS_MAX = int(os.environ.get("NODUS_FUNCTION_CONCURRENCY", "1")) + ASYNCIO_THREADS


class _Policy(asyncio.DefaultEventLoopPolicy):
    """Makes event loops with the larger pool; its threads start when they are needed."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        loop = super().new_event_loop()
        loop.set_default_executor(ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="asyncio"))
        return loop


asyncio.set_event_loop_policy(_Policy())
# As `python -m` would have it: user code may change the folder it runs in.
sys.path[0] = os.getcwd()
runpy.run_module("nodus._worker", run_name="__main__", alter_sys=True)
