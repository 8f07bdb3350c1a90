"""When an ephemeral App has been left alone by its client.

`nodus run` renews its App every 30 seconds and deletes it at the end. A client that was killed does neither; two
minutes after its last sign of life the App goes, with everything it owns (`activities/sweeper.py`).
"""

from __future__ import annotations

from datetime import datetime, timedelta

from controlplane.clock import parse_time
from controlplane.machinery.kind import Document


def expires_at(app: Document, expiry: timedelta) -> datetime | None:
    """When the App goes unless it is renewed before; None when it stays.

    The later of creation and renewal counts, so a client whose clock is slow cannot lose its App at once; one whose
    clock is fast only keeps it longer by as much.
    """
    if not app["spec"].get("ephemeral") or "deletionTimestamp" in app["metadata"]:
        return None
    signs = [parse_time(app["metadata"]["creationTimestamp"])]
    renewed = app["spec"].get("renewTime")
    if renewed:
        signs.append(parse_time(renewed))
    return max(signs) + expiry
