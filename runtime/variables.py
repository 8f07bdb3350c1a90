"""The environment variables a worker starts with.

Three layers: what any program expects, what the user set on the Function (its `env` and Secrets), and what makes the
public worker find its Function and the API, which a user cannot change. Nothing of the server's own environment is in
any of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runtime import sandbox

_RESERVED_PREFIX = "NODUS_"
_ALLOWED = frozenset({"NODUS_OUTPUT_DIR", "NODUS_STATE_DIR", "NODUS_CHECKPOINT_DIR"})


BASE_VARIABLES: Mapping[str, str] = {
    "PATH": f"{sandbox.ENVIRONMENT}/bin:/usr/local/bin:/usr/bin:/bin",
    "HOME": str(sandbox.WORKSPACE),
    "LANG": "C.UTF-8",
    # The way to the API is on loopback; a proxy the user set must not be asked for it.
    "NO_PROXY": "localhost,127.0.0.1",
    "no_proxy": "localhost,127.0.0.1",
    "PYTHONUNBUFFERED": "1",
    # Local sources that a Function carries are unpacked below the workspace.
    "PYTHONPATH": str(sandbox.WORKSPACE),
}
"""What every worker starts with; a user may change any of these."""


@dataclass(frozen=True, kw_only=True)
class WorkerIdentity:
    """Which Function's calls the worker runs, as which attempt, and how many at once."""

    attempt: str
    project: str
    function: str
    concurrency: int


def worker_variables(identity: WorkerIdentity, user: Iterable[tuple[str, str]]) -> tuple[dict[str, str], list[str]]:
    """(all variables of the worker, names of the user's that could not be set: reserved ones and malformed ones)."""
    variables = dict(BASE_VARIABLES)
    refused: list[str] = []
    for name, value in user:
        reserved = name.startswith(_RESERVED_PREFIX) and name not in _ALLOWED
        if reserved or not name or "=" in name or "\0" in name + value:
            refused.append(name)
        else:
            variables[name] = value
    if variables["PYTHONPATH"] != str(sandbox.WORKSPACE):
        variables["PYTHONPATH"] = ":".join(filter(None, [variables["PYTHONPATH"], str(sandbox.WORKSPACE)]))
    variables |= {
        "NODUS_FUNCTION": identity.function,
        "NODUS_PROJECT": identity.project,
        "NODUS_FUNCTION_CONCURRENCY": str(identity.concurrency),
        "NODUS_ATTEMPT": identity.attempt,
        "NODUS_CODE_DIR": str(sandbox.CODE),
        "NODUS_RUNTIME_SOCKET": str(sandbox.API_SOCKET),
    }
    return variables, refused
