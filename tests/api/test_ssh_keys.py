"""SSH keys, which `nodus login` registers: public ones only, and everybody their own."""

from __future__ import annotations

import base64
import hashlib
import secrets
from typing import Any

import pytest

from tests.api.test_members import member
from tests.fixtures.app import ROOT, ServedApi

KEYS = f"{ROOT}/sshkeys"
_CONTENT = b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + bytes(32)
PUBLIC = f"ssh-ed25519 {base64.b64encode(_CONTENT).decode()} ada@laptop\n"


def ssh_key(public_key: str = PUBLIC) -> dict[str, Any]:
    return {
        "metadata": {"name": f"k-{secrets.token_hex(4)}"},
        "spec": {"displayName": "Laptop", "publicKey": public_key},
    }


async def test_a_key_is_its_makers_and_others_leave_it_alone(project: ServedApi) -> None:
    _, viewer = await member(project, "Viewer")
    _, ada = await member(project, "Member")
    _, bob = await member(project, "Member")
    body = ssh_key()
    assert (await project.client.post(KEYS, json=ssh_key(), headers=viewer)).status_code == 201
    made = await project.client.post(KEYS, json=body, headers=ada)
    assert made.status_code == 201, made.text
    digest = base64.b64encode(hashlib.sha256(_CONTENT).digest()).decode().rstrip("=")
    whoami = (await project.client.get("/auth/whoami", headers=ada)).json()
    assert made.json()["status"]["fingerprint"] == f"SHA256:{digest}"
    assert made.json()["status"]["user"] == whoami["user"]
    # The command line sends the same at each login.
    assert (await project.client.post(KEYS, json=body, headers=ada)).status_code == 200
    path = f"{KEYS}/{body['metadata']['name']}"
    refused = await project.client.delete(path, headers=bob)
    assert (refused.status_code, refused.json()["details"]["missingScope"]) == (403, "members:write")
    assert (await project.client.delete(path, headers=ada)).status_code == 200


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "-----BEGIN OPENSSH PRIVATE KEY-----",
        "ssh-ed25519",
        "ssh-ed25519 nonsense!",
        f"ssh-dss {base64.b64encode(_CONTENT).decode()}",
        f"ssh-rsa {base64.b64encode(_CONTENT).decode()}",
        f"{PUBLIC}{PUBLIC}",
    ],
)
async def test_what_is_no_public_key_is_refused_with_its_field(project: ServedApi, wrong: str) -> None:
    answer = await project.client.post(KEYS, json=ssh_key(wrong))
    assert (answer.status_code, answer.json()["reason"]) == (422, "Invalid")
    assert [cause["field"] for cause in answer.json()["details"]["causes"]] == ["spec.publicKey"]
