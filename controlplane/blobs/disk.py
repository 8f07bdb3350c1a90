"""Blobs as files of this host: the default on one machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from controlplane.blobs.backend import CHUNK_BYTES, BytesMissingError, Found, unavailable


class DiskBackend:
    """Keeps each blob in a file below `root`, which must be on the file system of the upload folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def publish(self, path: Path, location: str, content_type: str) -> None:
        """Move the file to its place in one step, so a reader finds all of it or nothing."""
        try:
            await asyncio.to_thread(self._move, path, self._root / location)
        except OSError as error:
            raise unavailable(error) from error

    async def open(self, location: str) -> FileStream:
        """The file, open for reading."""
        try:
            return FileStream(await asyncio.to_thread((self._root / location).open, "rb"))
        except FileNotFoundError:
            raise BytesMissingError(location) from None
        except OSError as error:
            raise unavailable(error) from error

    async def remove(self, location: str) -> None:
        """Delete the file if it is there."""
        try:
            await asyncio.to_thread((self._root / location).unlink, missing_ok=True)
        except OSError as error:
            raise unavailable(error) from error

    async def stored(self, after: str, limit: int) -> list[Found]:
        """Files in the order of the parts of their paths."""
        try:
            return await asyncio.to_thread(lambda: list(islice(self._walk("", after.split("/")), limit)))
        except OSError as error:
            raise unavailable(error) from error

    def _walk(self, folder: str, after: Sequence[str]) -> Iterator[Found]:
        """What is below `folder`, without what lies up to `after`, a path that begins there."""
        try:
            entries = sorted(os.scandir(self._root / folder), key=lambda entry: entry.name)
        except FileNotFoundError:
            return  # nothing was ever stored
        begin, rest = (after[0], after[1:]) if after else ("", ())
        for entry in entries:
            location = f"{folder}/{entry.name}" if folder else entry.name
            if entry.name < begin:
                continue
            if entry.is_dir():
                yield from self._walk(location, rest if entry.name == begin else ())
            elif entry.name > begin:
                with contextlib.suppress(FileNotFoundError):
                    yield Found(location, datetime.fromtimestamp(entry.stat().st_mtime, UTC))

    @staticmethod
    def _move(source: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        source.replace(target)
        # The directory entry must be durable before a row names the file.
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class FileStream:
    """Reads a file in chunks, off the event loop."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    async def read(self) -> bytes:
        """The next chunk; empty at the end."""
        return await asyncio.to_thread(self._file.read, CHUNK_BYTES)

    async def close(self) -> None:
        """Close the file."""
        self._file.close()
