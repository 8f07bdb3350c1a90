"""What of an image runs when an interpreter starts in it, before any code of a Function.

A worker that waits (`warm.py`) has started before it has the variables of a Function, so nothing that looks at them may
have run by then. The worker's own packages are known not to (`worker_start.py` names what they read). An image may add
what Python runs by itself, replace a package of the worker, or hang a plugin into one; its workers then start cold.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_CUSTOMISATIONS = ("sitecustomize", "usercustomize")
"""Modules that `site` imports when they exist."""
_PLUGIN_GROUPS = (b"[pydantic]",)
"""Groups of entry points that a package of the worker loads while it is imported."""
_BYTES_MAX = 65_536
_NAMES_MAX = 20


def start_hooks(environment: Path, base: Path) -> list[str]:
    """What `environment`, which was made from the worker's own `base`, adds to an interpreter's start, as names in its
    site-packages; empty when a worker may wait in it. Only a few are named. Reads a sealed tree (`trees.py`), which
    hostile code has filled: call it off the event loop."""
    found, known = _site_packages(environment), _site_packages(base)
    if found is None or known is None:
        return ["site-packages"]
    names = {*_run_by_site(found, known), *_replaced(found, known), *_plugins(found, known)}
    return sorted(names)[:_NAMES_MAX]


def _site_packages(environment: Path) -> Path | None:
    found = sorted(environment.glob("lib/python3*/site-packages"))
    # Through a link it would be a folder of the host.
    return (
        found[0]
        if len(found) == 1 and found[0].resolve() == environment.resolve() / found[0].relative_to(environment)
        else None
    )


def _run_by_site(found: Path, known: Path) -> Iterator[str]:
    """Lines of `.pth` files can be code."""
    for path in found.glob("*.pth"):
        content = _content(path)
        if content is None or content != _content(known / path.name):
            yield path.name
    for name in _CUSTOMISATIONS:
        yield from (path.name for path in found.glob(f"{name}*"))


def _replaced(found: Path, known: Path) -> Iterator[str]:
    """A distribution of the worker in another version is one that nobody has looked at."""
    for path in known.glob("*.dist-info"):
        if not (found / path.name).is_dir():
            yield path.name


def _plugins(found: Path, known: Path) -> Iterator[str]:
    for path in found.glob("*.dist-info/entry_points.txt"):
        told = _content(path)
        new = not (known / path.parent.name).is_dir()
        if new and (told is None or any(group in told for group in _PLUGIN_GROUPS)):
            yield path.parent.name


def _content(path: Path) -> bytes | None:
    """What a file of the image holds; None of one that is large, or behind a link, which could lead anywhere."""
    if path.is_symlink() or path.parent.is_symlink() or not path.is_file() or path.stat().st_size > _BYTES_MAX:
        return None
    return path.read_bytes()
