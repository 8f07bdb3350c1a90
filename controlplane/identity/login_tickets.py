"""What a page hands to its next step: who the person is and what they decide about, signed and good for minutes.

A ticket stands for the credential that was proved a moment ago, so that this need not be sent twice nor kept. It is in
the page alone, not in a cookie: nobody else's page can make the person's browser send it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from datetime import datetime, timedelta
from typing import Any

import orjson
from pydantic import SecretStr

from controlplane.clock import Clock
from controlplane.identity.keys import KeyPurpose, derive_key

TICKET_SECONDS_MAX = 300
"""Time to read a page and decide."""
_SIGNATURE_BYTES = 32


class Tickets:
    """Makes and reads tickets; any process of the installation reads those of the others."""

    def __init__(self, secret_key: SecretStr, clock: Clock) -> None:
        self._key = derive_key(secret_key, KeyPurpose.LOGIN_TICKETS)
        self._clock = clock

    def issue(self, purpose: str, content: Any) -> str:  # noqa: ANN401 - JSON
        """A ticket for one step; only for the same `purpose` is it read again."""
        ends = self._clock.now() + timedelta(seconds=TICKET_SECONDS_MAX)
        text = orjson.dumps([purpose, ends, content])
        return base64.urlsafe_b64encode(self._sign(text) + text).decode()

    def read(self, purpose: str, ticket: str) -> Any:  # noqa: ANN401 - JSON
        """The content of a ticket; None for one that is not ours, for another step, or too old."""
        try:
            signed = base64.urlsafe_b64decode(ticket)
        except (binascii.Error, ValueError):
            return None
        signature, text = signed[:_SIGNATURE_BYTES], signed[_SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._sign(text)):
            return None
        signed_purpose, ends, content = orjson.loads(text)
        if signed_purpose != purpose or datetime.fromisoformat(ends) <= self._clock.now():
            return None
        return content

    def _sign(self, text: bytes) -> bytes:
        return hmac.digest(self._key, text, hashlib.sha256)
