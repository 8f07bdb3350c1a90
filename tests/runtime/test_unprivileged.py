"""A node that is not root: user namespaces instead of uids, the same view, no capability.

The test is root itself: only root can become another user and show that user an interpreter from a private home.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.environments import Environment

NOBODY = 65_534

NODE = """
import asyncio, os, sys
from pathlib import Path
from runtime.host import open_host
from runtime.plans import SidecarPlan, StartPlan
from runtime.supervisor import WorkerSupervisor
from tests.fixtures.eventually import eventually
from tests.runtime.conftest import LIMITS, Log
from tests.runtime.scripted_api import ScriptedApi
from tests.runtime.test_supervisor import APP, plan

SOURCE = APP + '''
@app.function()
def target():
    import os
    status = open("/proc/self/status").read()
    print(os.getuid(), *[line.split()[1] for line in status.splitlines() if line.startswith(("CapEff", "CapBnd"))])
    return b"x" * 200_000
'''

async def main(folder):
    async with ScriptedApi().serving() as api:
        api.set_code({"app.py": SOURCE})
        api.call("one")
        host = await open_host(directory=folder / "node", environments=folder / "environments", api_url=api.url,
                               environ=os.environ, limits=LIMITS)
        found = host.guarantees
        assert (found.level, found.uid, found.memory, found.pids) == ("basic", "shared", "soft", "soft"), found
        log = Log()
        supervisor = WorkerSupervisor(host, plan(), log, lambda phase: None)
        running = asyncio.create_task(supervisor.run(host.attempt_directory("att_test")))
        await eventually(lambda: "one" in api.outcomes or running.done())
        supervisor.drain(None)
        report = await running
        print(log.text(), report, api.outcomes)
        assert api.outcomes["one"]["outcome"] == "Succeeded"
        assert log.text("stdout") == ["1000 0000000000000000 0000000000000000"]
        assert report.ending.exit_code == 0
        look = ["sh", "-c", "readlink /proc/self/ns/net; id -u; grep CapEff /proc/self/status; exec sleep 600"]
        beside = [SidecarPlan(name=name, command=look) for name in ("a", "b")]
        log.chunks.clear()
        supervisor = WorkerSupervisor(
            host, plan(sidecars=beside, start=StartPlan(command=look)), log, lambda phase: None
        )
        host.remove_directory("att_test")
        running = asyncio.create_task(supervisor.run(host.attempt_directory("att_test")))
        await eventually(lambda: len(log.text("stdout")) == 9 or running.done())
        supervisor.drain(None)
        report = await running
        print(log.text(), report)
        assert report.problem is None
        assert len({line.removeprefix("[a] ").removeprefix("[b] ") for line in log.text("stdout")}) == 3
        assert len(log.text("stdout")) == 9
        host.remove_directory("att_test")
        eats = plan(memory_bytes_max=100 << 20, start=StartPlan(command=["python", "-c", "bytearray(300 << 20)"]))
        log.chunks.clear()
        supervisor = WorkerSupervisor(host, eats, log, lambda phase: None)
        report = await supervisor.run(host.attempt_directory("att_test"))
        assert (report.ending.exit_code, log.text()[-1]) == (1, "MemoryError"), log.text()
        await host.close()

asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_node_that_is_not_root_runs_a_confined_worker(environment: Environment) -> None:
    folder = Path("/tmp", f"nodus-unprivileged-{os.getpid()}")
    prefix, home = environment.interpreter.prefix, Path.home()
    made = folder / "data" / "environments" / environment.key
    project = Path(__file__).parents[2]
    # All mounts are private to this shell. An empty home makes the path to the interpreter one that others may walk.
    script = f"""
set -e
mkdir -p {folder}/python {made}
chown -R {NOBODY}:{NOBODY} {folder}/data
trap 'umount -R {home} {made} {folder}/python; rm -rf {folder}' EXIT
mount --bind {environment.path} {made}
mount --bind {prefix} {folder}/python
case {prefix} in {home}/*)
    mount -t tmpfs -o mode=755 tmpfs {home}
    mkdir -p {prefix}
    mount --bind {folder}/python {prefix};;
esac
setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups --no-new-privs env -i HOME={folder}/data \
    PATH={os.environ["PATH"]} PYTHONPATH={project} {sys.executable} -c "$NODE" {folder}/data
"""
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NODE": NODE},
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
