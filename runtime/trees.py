"""Folders that hostile code has filled: measured, made harmless, and named by their content.

Every function here works on a tree whose writers are all dead, and follows no symbolic link in it. A sealed tree has
only folders, plain files and links, belongs to the server, can be read by every user and written by none; its digest
covers names, kinds, modes, contents and targets, so a tree that changed by a single bit is another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import hashlib
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, TypeVarTuple

DEPTH_MAX = 128
"""Folders inside each other. Deeper ones exist to break whoever walks them."""
_READ_BYTES = 1 << 20
_FOLDER_MODE = 0o755
_BLOCK_BYTES = 512
_ENTRY_BYTES = 4_096
"""What an entry counts at least, so that a million empty files are not free."""

Made = TypeVar("Made")
Arguments = TypeVarTuple("Arguments")


class TreeRefusedError(Exception):
    """The tree is nested too deeply or has a name that cannot be written down; the message says where."""


@dataclass(frozen=True, kw_only=True)
class TreeSummary:
    """What a tree holds: `digest` is `sha256:` and 64 hex digits, `size_bytes` the sum of its files."""

    digest: str
    size_bytes: int


def seal(root: Path) -> TreeSummary:
    """Take the tree over from its writer: owner, modes, nothing special left. Its digest and size."""
    for path, status in _walk(root):
        _make_harmless(path, status)
    return summary(root)


def summary(root: Path) -> TreeSummary:
    """The digest and the size of a sealed tree as it is now. Reads everything, so call it off the event loop."""
    digest = hashlib.sha256()
    size_bytes = 0
    for path, status in _walk(root):
        kind = stat.S_IFMT(status.st_mode)
        content = b""
        if kind == stat.S_IFLNK:
            content = os.fsencode(os.readlink(path))
        elif kind == stat.S_IFREG:
            content = _content_digest(path)
            size_bytes += status.st_size
        name = os.fsencode(path.relative_to(root))
        executable = bool(kind == stat.S_IFREG and status.st_mode & 0o100)
        for field in (name, b"%o%d" % (kind, executable), content):
            digest.update(b"%d:" % len(field) + field)
    return TreeSummary(digest=f"sha256:{digest.hexdigest()}", size_bytes=size_bytes)


def disk_bytes(root: Path) -> int:
    """What a tree takes on the disk while others may still write to it; what vanishes meanwhile counts as nothing."""
    total = 0
    pending = [os.fspath(root)]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    try:
                        blocks = entry.stat(follow_symlinks=False).st_blocks
                        total += max(blocks * _BLOCK_BYTES, _ENTRY_BYTES)
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(entry.path)
                    except OSError:
                        continue
        except OSError:
            continue
    return total


def sync(root: Path) -> None:
    """Write everything of the tree's file system to the disk, so that a rename after it never names half a tree."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), "the file system could not be written to the disk", str(root))
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make a rename in this folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(root: Path) -> None:
    """Delete a tree however deep it is; `shutil.rmtree` would end at the depth of Python's stack."""
    subprocess.run(["rm", "-rf", "--", str(root)], check=True, stdin=subprocess.DEVNULL, capture_output=True)


async def to_end(work: Callable[[*Arguments], Made], *arguments: *Arguments) -> Made:
    """Run what writes to a tree in a thread. Whoever is cancelled meanwhile waits for its end: a thread cannot be
    stopped, and the tree must not be removed under its hands."""
    working = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        while not working.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([working])
        raise


def _walk(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Everything below the root in one order for equal trees, a folder before what is in it."""
    pending = [root]
    while pending:
        folder = pending.pop()
        if len(folder.relative_to(root).parts) >= DEPTH_MAX:
            raise TreeRefusedError(f"folders are nested deeper than {DEPTH_MAX}")
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: os.fsencode(entry.name))
        for entry in found:
            path = Path(entry.path)
            status = os.lstat(path)
            if stat.S_ISDIR(status.st_mode):
                pending.append(path)
            yield path, status


def _make_harmless(path: Path, status: os.stat_result) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind not in (stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK):
        path.unlink()
        return
    if os.geteuid() == 0:
        os.lchown(path, 0, 0)
    if kind == stat.S_IFDIR:
        path.chmod(_FOLDER_MODE)
    elif kind == stat.S_IFREG:
        path.chmod(0o755 if status.st_mode & 0o100 else 0o644)


def _content_digest(path: Path) -> bytes:
    digest = hashlib.sha256()
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(descriptor, "rb") as content:
        while chunk := content.read(_READ_BYTES):
            digest.update(chunk)
    return digest.digest()
