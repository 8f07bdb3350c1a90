"""The environment variables a worker starts with.

Three layers: what any program expects, what the user set on the Function (its `env` and Secrets), and what makes the
public worker find its Function and the API, which a user cannot change. Nothing of the server's own environment is in
any of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runtime.places import SANDBOXED, Places
from runtime.process import EGRESS_PORT

_RESERVED_PREFIX = "NODUS_"
_ALLOWED = frozenset({"NODUS_OUTPUT_DIR", "NODUS_STATE_DIR", "NODUS_CHECKPOINT_DIR"})


def base_variables(places: Places) -> dict[str, str]:
    """What every worker starts with; a user may change any of these."""
    return {
        "PATH": f"{places.environment}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(places.workspace),
        "LANG": "C.UTF-8",
        # The way to the API is on loopback; a proxy the user set must not be asked for it.
        "NO_PROXY": "localhost,127.0.0.1,::1",
        "no_proxy": "localhost,127.0.0.1,::1",
        "PYTHONUNBUFFERED": "1",
        # Local sources that a Function carries are unpacked below the workspace.
        "PYTHONPATH": str(places.workspace),
        **({} if places.temporary is None else {"TMPDIR": str(places.temporary)}),
    }


BASE_VARIABLES: Mapping[str, str] = base_variables(SANDBOXED)
"""Those of every worker in a sandbox."""


@dataclass(frozen=True, kw_only=True)
class WorkerIdentity:
    """Which Function's calls the worker runs, as which attempt, and how many at once."""

    attempt: str
    project: str
    function: str
    concurrency: int


_PROXY_NAMES = (
    *("http_proxy", "https_proxy", "all_proxy", "grpc_proxy", "HTTPS_PROXY", "ALL_PROXY", "GRPC_PROXY"),
    "HTTP_PROXY",  # npm, Go and .NET; curl and others take only the small letters, for the sake of CGI
)
"""How clients are told of a proxy. Both cases, because each is the only one that somebody reads:

| client | reads |
|---|---|
| curl, libcurl and so git | `http_proxy`, `https_proxy`, `all_proxy`; of the capital ones all but `HTTP_PROXY` |
| urllib, requests, pip, uv, httpx, boto3, huggingface_hub | either case |
| aiohttp | either case, when it is told to (`trust_env=True`) |
| npm | either case of the first two |
| Go, .NET, Node.js | `HTTP_PROXY`, `HTTPS_PROXY` |
| gRPC | `grpc_proxy`, `https_proxy`, `http_proxy` |

A client that reads none of them has no way out: it fails, it does not get past.
"""


def worker_variables(
    identity: WorkerIdentity, user: Iterable[tuple[str, str]], *, proxied: bool = False, places: Places = SANDBOXED
) -> tuple[dict[str, str], list[str]]:
    """(all variables of the worker, names of the user's that could not be set: reserved ones and malformed ones).

    `proxied` tells that there is an egress proxy to find.
    """
    variables, refused = sidecar_variables(identity, user, proxy_port=EGRESS_PORT if proxied else None, places=places)
    if variables["PYTHONPATH"] != str(places.workspace):
        variables["PYTHONPATH"] = ":".join(filter(None, [variables["PYTHONPATH"], str(places.workspace)]))
    variables |= {
        "NODUS_FUNCTION_CONCURRENCY": str(identity.concurrency),
        "NODUS_CODE_DIR": str(places.code),
        "NODUS_RUNTIME_SOCKET": str(places.api_socket),
    }
    return variables, refused


def sidecar_variables(
    identity: WorkerIdentity, user: Iterable[tuple[str, str]], *, proxy_port: int | None, places: Places = SANDBOXED
) -> tuple[dict[str, str], list[str]]:
    """The same for what runs beside the worker: whose it is, and no way to the API. `proxy_port` is where the egress
    proxy is found, if there is one."""
    variables = base_variables(places)
    if proxy_port is not None:
        variables |= dict.fromkeys(_PROXY_NAMES, f"http://127.0.0.1:{proxy_port}")
        variables["NODE_USE_ENV_PROXY"] = "1"  # Node.js asks for this before it looks at the others
    refused: list[str] = []
    for name, value in user:
        reserved = name.startswith(_RESERVED_PREFIX) and name not in _ALLOWED
        if reserved or not name or "=" in name or "\0" in name + value:
            refused.append(name)
        else:
            variables[name] = value
    variables |= {
        "NODUS_FUNCTION": identity.function,
        "NODUS_PROJECT": identity.project,
        "NODUS_ATTEMPT": identity.attempt,
    }
    return variables, refused
