"""The first lines that run in a worker's interpreter: they make its event loop, then run the public worker unmodified.

The node hands the text of this file to the worker's Python (`-c`), so nothing of ours is installed where user code
runs; nothing may import it. The loop differs from a plain one in three ways.

* Its default thread pool has a thread for each call (docs/decisions/0014-a-thread-for-each-call.md). The public worker
  puts synchronous calls there, min(32, cpus + 4) at once, however many it was told to run; the others would wait in the
  worker with their deadlines running.
* It knows which task runs which call, and which threads of the pool work for it
  (docs/decisions/0017-a-cancelled-call-ends-on-evidence.md). The public worker hears of a cancel with its next claim,
  up to 5 s later, and reports a call cancelled whose thread goes on. Here the task is cancelled as soon as the server
  asks for it, and the server is told when the last thread of a cancelled call has ended. Without these words, which are
  not part of the claims, everything works as the protocol has it, later.
* A call that raises is always reported. The public worker catches `Exception` and puts it in words; a
  `KeyboardInterrupt` or an exception without words would end the worker and all calls beside it, and a `StopIteration`
  from a thread is refused by futures before Python 3.12: its call would hang until the deadline. `sys.exit` ends the
  worker, as it says (docs/decisions/0036-what-a-function-raises-is-reported.md).

    argv: [GRANT_FD]

With a descriptor, the worker is a warm one (`warm.py`): it imports what the public worker imports before any code of a
user, no more, and then waits for its folder and variables. Those that mean something only to an interpreter that starts
with them are given to a new one, in the same process.
"""

from __future__ import annotations

import asyncio
import contextvars
import http.client
import importlib
import inspect
import json
import os
import queue
import runpy
import socket
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

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
        sys.exit("init: the worker was let go before it was anybody's")
    directory, *fields = orders.split(b"\0")
    granted = dict(field.split(b"=", 1) for field in fields)
    try:
        os.makedirs(directory, exist_ok=True)
        os.chdir(directory)
    except OSError as error:
        sys.exit(f"init: the working directory cannot be used: {error}")
    if early(granted) != early(os.environb):
        os.execve(sys.executable, [sys.executable, "-c", sys.orig_argv[2]], granted)  # noqa: S606 - that is the point
    os.environ.clear()
    os.environb.update(granted)
    # What lies in the folder now was perhaps not there when the path was last looked at.
    importlib.invalidate_caches()


def early(variables: os._Environ[bytes] | dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Those of these variables that only a new interpreter obeys."""
    return {name: value for name, value in variables.items() if name.startswith(FOR_A_NEW_INTERPRETER)}


if len(sys.argv) > 1:
    importlib.import_module("nodus._runtime.functions")
    be_granted(int(sys.argv.pop()))

ASYNCIO_THREADS = min(32, (os.cpu_count() or 1) + 4)
CALLS_MAX = int(os.environ.get("NODUS_FUNCTION_CONCURRENCY", "1"))
THREADS_MAX = CALLS_MAX + ASYNCIO_THREADS
YOUNG_SECONDS = 0.2
"""Younger calls are not asked about: most end before, and asking costs a request."""
WAIT_SECONDS = 20
PAUSE_SECONDS = 1.0
"""Between a question that was not answered and the next one."""
TELLINGS_MAX = 60
"""After that the server has ended the call by itself, or this worker."""

WAITS_IN_A_TASK = sys.version_info < (3, 12)
"""Whether `asyncio.wait_for` runs what it waits for, the body of an asynchronous call, in a task of its own."""


class Body:
    """One call that runs here, from its task to the end of the last thread that works for it."""

    def __init__(self, call: str, stopped: Callable[[str], None]) -> None:
        self.call = call
        self.began_at = time.monotonic()
        self.task: asyncio.Task[Any] | None = None
        self.stopping = False
        self._stopped = stopped
        self._cancelled = False
        self._working = 1
        self._lock = threading.Lock()

    def works(self) -> None:
        """One more thread works for it."""
        with self._lock:
            self._working += 1

    def thread_ended(self, _: Future[Any]) -> None:
        """A thread that worked for it does not any more."""
        self._rests()

    def task_ended(self, task: asyncio.Task[Any]) -> None:
        """Its task is over, and says how in the words of a claim."""
        if not task.cancelled() and task.exception() is None and isinstance(task.result(), dict):
            self._cancelled = task.result().get("outcome") == "Cancelled"
        self._rests()

    def _rests(self) -> None:
        with self._lock:
            self._working -= 1
            over = not self._working
        if over and self._cancelled:
            self._stopped(self.call)


BODY: contextvars.ContextVar[Body | None] = contextvars.ContextVar("nodus_body", default=None)


class Pool(ThreadPoolExecutor):
    """Counts its work for the call that asked for it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ANN401 - as it is
        body = BODY.get()
        if body is None:
            return super().submit(fn, *args, **kwargs)
        future = super().submit(_without_stop, fn, *args, **kwargs)
        body.works()
        future.add_done_callback(body.thread_ended)
        return future


def _without_stop(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as it is
    """Call it; a StopIteration becomes what the body of a generator or coroutine would make of it."""
    try:
        return fn(*args, **kwargs)
    except StopIteration as error:
        raise RuntimeError("the function raised StopIteration") from error


class Raised(BaseException):
    """Carries what would end the event loop out of the task that runs the body of an asynchronous call."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class Contained(Coroutine[Any, Any, Any]):
    """A coroutine that does not let a KeyboardInterrupt of the user's code through to the loop."""

    def __init__(self, coroutine: types.CoroutineType[Any, Any, Any]) -> None:
        self.coroutine = coroutine

    def send(self, value: Any) -> Any:  # noqa: ANN401 - as it is
        return self.step(self.coroutine.send, value)

    def throw(self, *raised: Any) -> Any:  # noqa: ANN401 - as it is
        return self.step(self.coroutine.throw, *raised)

    def close(self) -> None:
        self.coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.coroutine.__await__()

    def step(self, advance: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401 - as it is
        try:
            return advance(*arguments)
        except KeyboardInterrupt as error:
            raise Raised(error) from None


class Reported(Contained):
    """The coroutine of the public worker for one call, which ends with a report whatever was raised in it."""

    def __init__(self, coroutine: types.CoroutineType[Any, Any, Any], call: str) -> None:
        super().__init__(coroutine)
        self._call = call

    def step(self, advance: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401 - as it is
        try:
            return advance(*arguments)
        except (StopIteration, asyncio.CancelledError, SystemExit):
            raise
        except BaseException as error:
            told = _in_words(error.error if isinstance(error, Raised) else self._first(error))
            raise StopIteration({"call": self._call, "outcome": "RemoteError", "error": told}) from None

    def _first(self, error: BaseException) -> BaseException:
        """What the public worker had caught when it failed to put it in words, or the error itself."""
        code, earlier = self.coroutine.cr_code, error.__context__
        while earlier is not None:
            if earlier.__traceback__ is not None and earlier.__traceback__.tb_frame.f_code is code:
                return earlier
            earlier = earlier.__context__
        return error


def _in_words(error: BaseException) -> dict[str, str]:
    """Type, message and traceback as claims carry them."""
    cls = type(error)
    try:
        message = str(error)
    except BaseException as failure:
        message = f"its message cannot be read: __str__ raised {type(failure).__name__}"
    return {
        "type": cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}",
        "message": message,
        "traceback": "".join(traceback.format_exception(cls, error, error.__traceback__)),
    }


class Bodies:
    """The calls that run here, and two threads that speak with the server about their cancels."""

    def __init__(self) -> None:
        self._running: dict[str, Body] = {}
        self._busy = threading.Event()
        self._stopped: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._started = False

    def make_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:  # noqa: ANN401
        """The task factory of the loop; a task of the public worker that runs a call carries that call's body."""
        body = BODY.get()
        if body is not None and WAITS_IN_A_TASK and asyncio.current_task(loop) is body.task:
            return asyncio.Task(Contained(coroutine), loop=loop, **options)
        call = None if body is not None else _call_of(coroutine)
        if call is None:
            return asyncio.Task(coroutine, loop=loop, **options)
        body = Body(call, self._stopped.put)
        token = BODY.set(body)
        try:
            task = asyncio.Task(Reported(coroutine, call), loop=loop, **options)
        finally:
            BODY.reset(token)
        self._begin(body, task)
        return task

    def _begin(self, body: Body, task: asyncio.Task[Any]) -> None:
        body.task = task
        self._running[body.call] = body
        task.add_done_callback(lambda _: self._running.pop(body.call, None))
        task.add_done_callback(body.task_ended)
        self._busy.set()
        if not self._started:
            self._started = True
            for speak in (self._hear, self._tell):
                threading.Thread(target=speak, name=f"nodus{speak.__name__}", daemon=True).start()

    def _hear(self) -> None:
        """Ask which calls are to stop, while some have run for a moment."""
        while True:
            self._busy.wait()
            time.sleep(YOUNG_SECONDS)
            running = list(self._running.values())
            if not running:
                self._busy.clear()
                if self._running:
                    self._busy.set()
                continue
            if all(time.monotonic() - body.began_at < YOUNG_SECONDS for body in running):
                continue
            cancel = _ask(stopping=[body.call for body in running if body.stopping], wait=f"{WAIT_SECONDS}s")
            if cancel is None:
                time.sleep(PAUSE_SECONDS)
            for call in cancel or ():
                body = self._running.get(call)
                if body is not None and body.task is not None and not body.stopping:
                    body.stopping = True
                    body.task.get_loop().call_soon_threadsafe(_stop, body.task)

    def _tell(self) -> None:
        """Say which cancelled calls have nothing left that runs."""
        while True:
            stopped = [self._stopped.get()]
            while not self._stopped.empty() and len(stopped) < CALLS_MAX:
                stopped.append(self._stopped.get())
            for _ in range(TELLINGS_MAX):
                if _ask(stopped=stopped, wait="0s") is not None:
                    break
                time.sleep(PAUSE_SECONDS)


def _call_of(coroutine: Any) -> str | None:  # noqa: ANN401 - whatever a task may be made of
    """The call that a coroutine of the public worker was begun for; None of any other coroutine."""
    frame = getattr(coroutine, "cr_frame", None)
    if frame is None or frame.f_globals.get("__name__") != "nodus._runtime.functions":
        return None
    call = inspect.getcoroutinelocals(coroutine).get("call")
    name = call.get("id") if isinstance(call, dict) else None
    return name if isinstance(name, str) else None


def _stop(task: asyncio.Task[Any]) -> None:
    """Cancel a task as the public worker does; one that has not begun yet would leave it without a report."""
    coroutine = task.get_coro()
    if isinstance(coroutine, Reported) and inspect.getcoroutinestate(coroutine.coroutine) == inspect.CORO_CREATED:
        task.get_loop().call_soon(_stop, task)
    else:
        task.cancel()


def _ask(**body: Any) -> list[str] | None:  # noqa: ANN401 - JSON
    """Calls that the server wants stopped; None when it could not be asked."""
    project, function = os.environ.get("NODUS_PROJECT", ""), os.environ.get("NODUS_FUNCTION", "")
    path = f"/apis/nodus.dev/v1/namespaces/{project}/functions/{function}/cancels"
    connection = http.client.HTTPConnection("nodus")
    try:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(2 * WAIT_SECONDS)
        connection.sock.connect(os.environ["NODUS_RUNTIME_SOCKET"])
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.read())
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return answer["cancel"] if response.status == http.client.OK else None


class Policy(asyncio.DefaultEventLoopPolicy):
    """Makes event loops with the larger pool, whose threads start when they are needed, and tasks that are known."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        loop = super().new_event_loop()
        loop.set_default_executor(Pool(THREADS_MAX, thread_name_prefix="asyncio"))
        loop.set_task_factory(BODIES.make_task)
        return loop


BODIES = Bodies()
asyncio.set_event_loop_policy(Policy())
# As `python -m` would have it: user code may change the folder it runs in.
sys.path[0] = os.getcwd()
runpy.run_module("nodus._worker", run_name="__main__", alter_sys=True)
