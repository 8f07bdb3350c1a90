"""The first lines that run in a worker's interpreter: as many threads as it runs calls at once, then the public worker.

The node hands the text of this file to the worker's Python (`-c`), so nothing of ours is installed where user code
runs; nothing may import it. The public worker puts synchronous calls into the default thread pool of asyncio,
min(32, cpus + 4) threads, however many calls it was told to run at once: the others would wait in the worker with their
deadlines running. The pool here has a thread for each call beside those that asyncio gives to everything else
(docs/decisions/0014-a-thread-for-each-call.md).
"""

import asyncio
import os
import runpy
import sys
from concurrent.futures import ThreadPoolExecutor

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
