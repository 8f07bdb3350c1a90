"""No answer to a write tells whether there is something that the caller may not read (docs/decisions/0029)."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.identity.bootstrap import keep_operator_key
from controlplane.identity.tokens import new_api_key
from controlplane.kinds.api_key import KEPT_BY
from controlplane.kinds.registry import KINDS
from tests.api.test_permissions import CALLERS, Asked, Caller, header, of_kind
from tests.api.test_ssh_keys import PUBLIC
from tests.fixtures.app import ROOT, ServedApi


async def _of_others(project: ServedApi) -> dict[str, list[str]]:
    """Objects that are judged, of an Owner: what nobody below may change, and the key that an operator keeps."""

    async def made(plural: str, spec: dict[str, Any]) -> str:
        body = {"metadata": {"generateName": "judged-"}, "spec": spec}
        answer = await project.client.post(f"{ROOT}/{plural}", json=body)
        assert answer.status_code == 201, answer.text
        name: str = answer.json()["metadata"]["name"]
        return name

    owner, core = await made("members", {"role": "Owner"}), project.core
    await keep_operator_key(core.writer, core.database, core.settings, new_api_key())
    keys = (await project.client.get(f"{ROOT}/apikeys")).json()["items"]
    kept = [key["metadata"]["name"] for key in keys if KEPT_BY in key["metadata"].get("annotations", {})]
    return {
        "members": [owner],
        "apikeys": [await made("apikeys", {"member": owner, "scopes": ["*:read"]}), *kept],
        "invites": [await made("invites", {"email": "new@example.com", "role": "Owner"})],
        "sshkeys": [await made("sshkeys", {"publicKey": PUBLIC})],
    }


@pytest.mark.parametrize(("name", "caller"), CALLERS.items())
async def test_who_may_not_read_what_is_judged_learns_from_no_write_whether_it_is_there(
    project: ServedApi, name: str, caller: Caller
) -> None:
    headers, existing = await header(project, name, caller), await _of_others(project)
    for asked in (asked for kind in KINDS.values() for asked in of_kind(kind) if asked.judged):
        if caller.org != "default" or (caller.is_known and caller.reads(asked.judged)):
            continue
        answers = [await _written(project, asked, other, headers) for other in ("absent", *existing[asked.judged])]
        assert {code for code, _ in answers} <= {401, 403}, answers
        assert all(answer == answers[0] for answer in answers), answers


async def _written(project: ServedApi, asked: Asked, name: str, headers: dict[str, str]) -> tuple[int, str]:
    kind = {"Content-Type": "application/merge-patch+json"} if asked.method == "PATCH" else {}
    path = asked.path.replace("absent", name)
    answer = await project.client.request(asked.method, path, json=asked.body, headers={**headers, **kind})
    return answer.status_code, answer.text.replace(name, "NAME").replace(answer.headers["X-Request-Id"], "ID")
