"""The SSHKey kind: a public key of a person.

`nodus login` registers one after every login and fails where it cannot. Nothing of this server lets anybody in with it;
clients find here which keys a person has.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

from pydantic import Field

from controlplane.errors import Cause, invalid
from controlplane.kinds.granting import may_not
from controlplane.machinery.conditions import Condition, Conditions, with_condition
from controlplane.machinery.kind import ALL_VERBS, AdmissionContext, Caller, Column, Document, Kind, Scope, Verb
from controlplane.machinery.model import ApiModel
from controlplane.machinery.table import AGE_COLUMN, NAME_COLUMN, text_at

PUBLIC_KEY_LENGTH_MAX = 2_048
"""Characters; an RSA key of 8,192 bits has some 1,400."""
ALGORITHMS = frozenset(
    {
        "ssh-ed25519",
        "sk-ssh-ed25519@openssh.com",
        "ecdsa-sha2-nistp256",
        "ecdsa-sha2-nistp384",
        "ecdsa-sha2-nistp521",
        "sk-ecdsa-sha2-nistp256@openssh.com",
        "ssh-rsa",
    }
)
"""What OpenSSH makes today; DSA is broken."""
_LENGTH_BYTES = 4
_WRITE_MEMBERS = "members:write"


class SSHKeySpec(ApiModel):
    """The key."""

    display_name: str | None = Field(default=None, max_length=128, description="A name for people.")
    public_key: str = Field(
        max_length=PUBLIC_KEY_LENGTH_MAX, description="One line as `ssh-keygen` writes it into its .pub file."
    )


class SSHKeyStatus(ApiModel):
    """What the server made of it."""

    phase: str | None = Field(default=None, description="Ready.")
    user: str | None = Field(default=None, description="The id of the person it belongs to.")
    fingerprint: str | None = Field(default=None, description="As `ssh-keygen -l` tells it.")
    conditions: Conditions | None = Field(default=None, description="Ready.")


class SSHKeyStrategy:
    """What SSH keys add to the generic verbs: they are public keys, and somebody's."""

    async def prepare_create(self, document: Document, context: AdmissionContext) -> None:
        try:
            fingerprint = fingerprint_of(document["spec"]["publicKey"])
        except ValueError as error:
            causes = [Cause("spec.publicKey", str(error))]
            raise invalid(SSH_KEY.plural, document["metadata"].get("name", ""), causes) from None
        if context.caller is not None and context.caller.user_uuid is None:
            raise may_not("have SSH keys, because it is no person's", _WRITE_MEMBERS)
        ready = Condition("Ready", "True", "Ready", "the key can be read", 1)
        document["status"] = {
            "phase": "Ready",
            "user": "" if context.caller is None else context.caller.user_uuid,
            "fingerprint": fingerprint,
            "conditions": with_condition([], ready, context.now),
        }

    async def prepare_update(self, old: Document, new: Document, context: AdmissionContext) -> None:
        return None


def fingerprint_of(public_key: str) -> str:
    """`SHA256:` and the digest, as OpenSSH writes it; ValueError with a sentence for what is no public key."""
    words = public_key.split()
    if len(words) < 2 or words[0] not in ALGORITHMS or "\n" in public_key.strip():
        raise ValueError("must be one line of a .pub file: an algorithm, the key in base64, and perhaps a comment")
    try:
        content = base64.b64decode(words[1], validate=True)
    except binascii.Error:
        raise ValueError("the second word must be base64") from None
    name = words[0].encode()
    # A private key, or one of another algorithm than it says, does not begin so.
    if not content.startswith(len(name).to_bytes(_LENGTH_BYTES) + name) or len(content) <= _LENGTH_BYTES + len(name):
        raise ValueError(f"the second word must be a public key of the algorithm {words[0]}")
    digest = base64.b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    return f"SHA256:{digest}"


def _scope_to_change(document: Document, caller: Caller) -> str:
    return "" if document["status"].get("user") == caller.user_uuid else _WRITE_MEMBERS


SSH_KEY = Kind(
    kind="SSHKey",
    plural="sshkeys",
    uid_prefix="ssh",
    scope=Scope.ORG,
    # Each delete is judged by whose key it is.
    verbs=ALL_VERBS - {Verb.DELETE_COLLECTION},
    description="A public SSH key of a person, which `nodus login` registers.",
    spec=SSHKeySpec,
    status=SSHKeyStatus,
    columns=(
        NAME_COLUMN,
        Column("Fingerprint", text_at("status.fingerprint"), "As `ssh-keygen -l` tells it."),
        Column("User", text_at("status.user"), "Whose it is.", priority=1),
        AGE_COLUMN,
    ),
    short_names=("ssh",),
    selectable_fields=("status.user", "status.fingerprint"),
    immutable_fields=("spec.publicKey",),
    strategy=SSHKeyStrategy(),
    scope_to_change=_scope_to_change,
    project_field="",
    scope_resource="sshkeys",
)
