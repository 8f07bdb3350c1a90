"""Unix sockets that one user of the host may connect to; each leads from one sandbox to what is outside."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def bind_socket(directory: Path, name: str, owner: int | None) -> socket.socket:
    """A unix socket that only `owner` may connect to.

    It is bound through a descriptor of the folder, because a socket's path is limited to 107 bytes and data folders
    are not.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{name}")
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(folder)
    path = directory / name
    path.chmod(0o600)
    if owner is not None:
        os.chown(path, owner, owner)
    listener.setblocking(False)
    return listener
