"""A whole installation as separate processes, each of which may be killed, frozen, cut off or given another clock.

Two `api`, two `control`, a node of scripted workers, PostgreSQL and Temporal. Every link goes through a proxy:
`web` before each API, `sql` and `engine` before the engines, one for each process that uses them. The harness is the
supervisor: what it kills it starts again. All members are children that die with this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import asyncpg
from temporalio.client import Client as Engine

from activities.run_call_contract import CONTROL_TASK_QUEUE
from activities.run_worker_contract import node_task_queue
from controlplane.settings import Settings
from tests.faults.history import whole_lines
from tests.faults.proxy import Proxy
from tests.fixtures.eventually import eventually
from tests.fixtures.host_clock import moved_clock
from tests.fixtures.prices import RATE_USD_PER_HOUR
from workers.engines.child import free_port, start_child, stop_child
from workers.engines.postgres import EmbeddedPostgres
from workers.engines.probe import says_ok
from workers.engines.temporal import EmbeddedTemporal
from workers.health import polls
from workers.supervision import run_to_end, tail

APIS = ("api-1", "api-2")
CONTROLS = ("control-1", "control-2")
NODE = "node"
ENGINES = ("postgres", "temporal")
SERVERS = (*APIS, *CONTROLS, NODE)
MEMBERS = (*SERVERS, *ENGINES)
READY_SECONDS_MAX = 240.0

# The protocol's times, divided by about four and in its proportions: a lease is two long polls and a margin.
SETTINGS: Mapping[str, str] = {
    "claim_wait_seconds_max": "7",
    "lease_seconds": "20",
    "deadline_grace_seconds": "15",
    "cancel_grace_seconds": "8",
    "drain_seconds": "8",
    "node_stop_seconds": "3",
    "bookmark_seconds": "5",
    "autoscaler_resync_seconds": "2",
    "blob_url_seconds": "300",
    "worker_rate_usd_per_hour": RATE_USD_PER_HOUR,
    # Holds are renewed all the time, so that processes die around it.
    "worker_hold_seconds": "10",
    "worker_hold_seconds_min": "5",
    "worker_hold_renew_seconds": "5",
}
HEARTBEAT_SECONDS = 1.25


class MemberDiedError(Exception):
    """A member ended before it was seen to serve."""


class Cluster:
    """The members and their links. `start` once; any member may then be killed and started again."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.logs = folder / "logs"
        self.history = folder / "history.jsonl"
        self.marks = folder / "marks"
        self.settings = {**SETTINGS, **(settings or {})}
        self.failpoints = folder / "failpoints"
        for path in (self.logs, self.marks, self.failpoints):
            path.mkdir(parents=True)
        self._secrets = {name: secrets.token_hex(32) for name in ("secret_key", "node_token", "database_password")}
        self.postgres = EmbeddedPostgres(
            folder / "postgres", port=free_port(), password=self._secrets["database_password"],
            log=self.logs / "postgres.log",
        )  # fmt: skip
        self.temporal = EmbeddedTemporal(folder / "temporal", log=self.logs / "temporal.log")
        self._ports = {name: free_port() for name in APIS}
        self.web: dict[str, Proxy] = {name: Proxy(("127.0.0.1", self._ports[name])) for name in APIS}
        self.sql: dict[str, Proxy] = {}
        self.engine: dict[str, Proxy] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._extra: dict[str, dict[str, str]] = {name: {} for name in SERVERS}
        self.key = ""
        self.client: Engine

    # Its life.

    async def start(self) -> None:
        """Start every member and make the first key."""
        await asyncio.gather(self.postgres.start(), self.temporal.start())
        self.client = await Engine.connect(self.temporal.address)
        engine_host, _, engine_port = self.temporal.address.partition(":")
        self.sql = {name: Proxy(("127.0.0.1", self.postgres.port)) for name in (*APIS, *CONTROLS)}
        self.engine = {name: Proxy((engine_host, int(engine_port))) for name in (*CONTROLS, NODE)}
        for proxy in self.proxies:
            await proxy.open()
        await self._without_disk()
        key_file = self.folder / "admin.key"
        await run_to_end(
            [sys.executable, "-m", "workers", "init", "--key-file", str(key_file)],
            environment=self.environment("api-1"),
            log=self.logs / "init.log",
        )
        self.key = key_file.read_text().strip()
        await asyncio.gather(*(self.start_member(name) for name in SERVERS))

    async def stop(self) -> None:
        """End everything."""
        for name in reversed(SERVERS):
            process = self._processes.get(name)
            if process is not None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()
        for proxy in self.proxies:
            await proxy.close()
        for engine in (self.postgres, self.temporal):
            if engine._process is not None:
                os.killpg(engine.process.pid, signal.SIGCONT)
                engine.stop()

    @property
    def proxies(self) -> list[Proxy]:
        """All links."""
        return [*self.web.values(), *self.sql.values(), *self.engine.values()]

    @property
    def urls(self) -> list[str]:
        """Where the APIs are, behind their proxies."""
        return [f"http://127.0.0.1:{proxy.port}" for proxy in self.web.values()]

    # Members.

    async def start_member(self, name: str, **extra: str) -> None:
        """Start a member and wait until it serves; `extra` settings are for this life of it only."""
        if name in ENGINES:
            await (self.postgres if name == "postgres" else self.temporal).start()
            return
        program = "tests.faults.node" if name == NODE else "workers"
        arguments = [] if name == NODE else [name.partition("-")[0]]
        overrides = {f"NODUS_SERVER_{setting.upper()}": value for setting, value in extra.items()}
        self._processes[name] = start_child(
            [sys.executable, "-m", program, *arguments],
            environment={**self.environment(name), **self._extra[name], **overrides},
            log=self.logs / f"{name}.log",
            death_signal=signal.SIGKILL,
        )
        await eventually(lambda: self._is_ready(name), within=READY_SECONDS_MAX, every=0.1)

    def process(self, name: str) -> subprocess.Popen[bytes]:
        """A member's process."""
        if name in ENGINES:
            return (self.postgres if name == "postgres" else self.temporal).process
        return self._processes[name]

    def kill(self, name: str) -> None:
        """kill -9, with everything that the member started in its group."""
        process = self.process(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def freeze(self, name: str) -> None:
        """SIGSTOP to a member and its group."""
        os.killpg(self.process(name).pid, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """SIGCONT after `freeze`."""
        os.killpg(self.process(name).pid, signal.SIGCONT)

    async def restart(self, name: str) -> None:
        """kill -9 and a new start."""
        self.kill(name)
        await self.start_member(name)

    def is_dead(self, name: str) -> bool:
        """Whether a server's process has ended, by itself or not."""
        return self._processes[name].poll() is not None

    async def revive(self) -> list[str]:
        """Start again what has died by itself; the names."""
        dead = [name for name in SERVERS if self.is_dead(name)]
        await asyncio.gather(*(self.start_member(name) for name in dead))
        return dead

    async def stop_politely(self, name: str) -> None:
        """SIGTERM, as an operator's restart does."""
        await asyncio.to_thread(stop_child, self.process(name))

    def workers(self) -> list[int]:
        """Pids of scripted workers that run now, as the history names them."""
        started = (json.loads(line) for line in whole_lines(self.history) if '"started"' in line)
        return [event["pid"] for event in started if _is_worker(event["pid"])]

    def signal_workers(self, number: signal.Signals, rng: random.Random | None = None) -> list[int]:
        """Send a signal to all workers, or to one of them that `rng` chooses; their pids."""
        pids = self.workers()
        chosen = pids if rng is None or not pids else [rng.choice(pids)]
        for pid in chosen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return chosen

    def move_clock(self, name: str, seconds: int) -> None:
        """From its next start on the member's clock is off by this much; for the node, that of its next workers."""
        clock = moved_clock(seconds)
        if name == NODE:
            (self.folder / "node.clock").write_text(json.dumps(clock))
        else:
            self._extra[name] = clock

    # Around it.

    async def connect(self) -> asyncpg.Connection[asyncpg.Record]:
        """A connection to the database that no fault touches."""
        connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(self.postgres.url)
        return connection

    def tails(self) -> str:
        """The end of every log, for the message of a failed test."""
        return "\n".join(f"--- {log.name}\n{tail(log, 15)[-3000:]}" for log in sorted(self.folder.rglob("*.log")))

    async def _is_ready(self, name: str) -> bool:
        process = self._processes[name]
        if self.is_dead(name):
            raise MemberDiedError(f"{name} ended with {process.returncode}: {tail(self.logs / f'{name}.log')}")
        if name in APIS:
            return await says_ok(self._ports[name], "/readyz", 2.0)
        queue = node_task_queue("local") if name == NODE else CONTROL_TASK_QUEUE
        return await polls(self.client, queue, f"{process.pid}@")

    async def _without_disk(self) -> None:
        """No run outlives a crash of the machine, and waiting for the disk is most of a small write."""
        admin = await self.connect()
        await admin.execute("ALTER SYSTEM SET fsync = off")
        await admin.execute("SELECT pg_reload_conf()")
        await admin.close()

    def environment(self, name: str) -> dict[str, str]:
        """The variables of a member's process."""
        port = {names: str(port) for names, port in self._ports.items()}.get(name, "0")
        sql = self.sql[name].port if name in self.sql else self.postgres.port
        engine = f"127.0.0.1:{self.engine[name].port}" if name in self.engine else self.temporal.address
        wiring = {
            "database_url": self.postgres.url.replace(f":{self.postgres.port}/", f":{sql}/"),
            "temporal_address": engine,
            "data_dir": str(self.folder / "data"),
            "failpoints_dir": str(self.failpoints),
            "secret_key": self._secrets["secret_key"],
            "node_token": self._secrets["node_token"],
            "http_port": port,
            "public_url": self.urls[0],
            "api_url": self.urls[0],
        }
        harness = {
            "FAULTS_URLS": json.dumps(self.urls),
            "FAULTS_HISTORY": str(self.history),
            "FAULTS_NODE_FOLDER": str(self.folder / "node"),
            "FAULTS_WAIT_SECONDS": self.settings["claim_wait_seconds_max"],
            "FAULTS_HEARTBEAT_SECONDS": str(HEARTBEAT_SECONDS),
            "FAULTS_LEASE_SECONDS": self.settings["lease_seconds"],
        }
        passed = {key: value for key, value in os.environ.items() if not key.startswith("NODUS_")}
        ours = {f"NODUS_SERVER_{key.upper()}": value for key, value in {**self.settings, **wiring}.items()}
        return {**passed, **ours, **harness, "PYTHONUNBUFFERED": "1"}


def setting(cluster: Cluster, name: str) -> str:
    """The text of a setting as the cluster's processes have it."""
    return str(cluster.settings.get(name, Settings.model_fields[name].default))


def _is_worker(pid: int) -> bool:
    try:
        words: Sequence[bytes] = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False  # it was not there, or left while it was looked at
    return b"tests.faults.worker" in words
