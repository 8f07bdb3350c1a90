"""Unpacks one archive of an image inside its build's sandbox, where hostile archives can hurt nobody else.

The node hands the text of this file to the build (`/nodus/inputs/extract.py`); it uses the standard library only and
nothing may import it.

The public SDK packs a single file and a folder alike, so an archive with one file may be either. It is the file itself
when the destination has its name or the same extension (`a.txt` to `/data/b.txt`); everything else is the content of
the destination, a folder.

    argv: ARCHIVE DESTINATION
"""

import os
import sys
import tarfile

ENTRIES_MAX = 200_000
BYTES_MAX = 32 << 30
"""A bomb is ended by the build's disk budget long before; this bounds what the budget cannot see in time."""


def main() -> None:
    """Unpack, or say in a line why not."""
    archive, destination = sys.argv[1:]
    try:
        with tarfile.open(archive, "r:gz") as tar:
            _unpack(tar, destination)
    except (tarfile.TarError, OSError, EOFError) as error:
        sys.exit(f"the archive cannot be unpacked to {destination}: {error}")


def _unpack(tar: tarfile.TarFile, destination: str) -> None:
    members = []
    total = 0
    for member in tar:
        members.append(member)
        total += member.size
        if len(members) > ENTRIES_MAX or total > BYTES_MAX:
            sys.exit(f"the archive holds more than {ENTRIES_MAX} entries or {BYTES_MAX} bytes")
    folder = destination
    if len(members) == 1 and _is_the_file(members[0], os.path.basename(destination)):
        folder, members[0].name = os.path.split(destination)
    os.makedirs(folder, exist_ok=True)
    tar.extractall(folder, members=members, filter="data")


def _is_the_file(member: tarfile.TarInfo, name: str) -> bool:
    extension = os.path.splitext(name)[1]
    same = member.name == name or (extension != "" and os.path.splitext(member.name)[1] == extension)
    return member.isfile() and "/" not in member.name and same


main()
