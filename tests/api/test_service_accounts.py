"""ServiceAccounts: what their tokens may do follows their scopes, and ends with them."""

from __future__ import annotations

import secrets
from typing import Any

import httpx

from activities.credentials_keeper import CredentialsKeeper
from controlplane.clock import parse_time
from tests.api.test_access import key
from tests.api.test_api_keys import KEYS, bearer, whoami
from tests.fixtures.app import ROOT, ServedApi
from tests.fixtures.eventually import eventually

MERGE = {"Content-Type": "application/merge-patch+json"}


async def account(project: ServedApi, *scopes: str) -> str:
    """The path of a new ServiceAccount."""
    await project.create("serviceaccounts", {"metadata": {"name": "ci"}, "spec": {"scopes": list(scopes)}})
    return f"{project.path}/serviceaccounts/ci"


async def mint(project: ServedApi, path: str, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    return await project.client.post(f"{path}/tokens", json=body, headers=headers)


async def test_a_token_does_what_its_account_may_in_its_project(project: ServedApi) -> None:
    path = await account(project, "apps:read", "apps:write")
    answer = await mint(project, path, duration="720h0m0s", scopes=["apps:read"])
    assert answer.status_code == 201, answer.text
    days = (parse_time(answer.json()["expirationTime"]) - project.core.clock.now()).total_seconds() / 86_400
    assert 29.9 < days <= 30
    headers = bearer(answer.json()["token"])
    told = await whoami(project, headers)
    assert (told["kind"], told["serviceAccount"], told["scopes"]) == ("ServiceAccount", "ci", ["apps:read"])
    assert told["projects"] == [project.project_name]
    app = {"metadata": {"name": "a"}, "spec": {}}
    assert (await project.client.get(f"{project.path}/apps", headers=headers)).status_code == 200
    assert (await project.client.post(f"{project.path}/apps", json=app, headers=headers)).status_code == 403
    assert (await project.client.get(f"{ROOT}/namespaces/default/apps", headers=headers)).status_code == 403
    whole = bearer((await mint(project, path)).json()["token"])
    created = await project.client.post(f"{project.path}/apps", json=app, headers=whole)
    assert created.json()["metadata"]["labels"]["nodus.dev/created-by"].startswith("sa_")


async def test_an_account_without_scopes_may_nothing(project: ServedApi) -> None:
    headers = bearer((await mint(project, await account(project))).json()["token"])
    assert (await whoami(project, headers))["scopes"] == []
    assert (await project.client.get(f"{project.path}/apps", headers=headers)).status_code == 403


async def test_changed_scopes_reach_the_tokens_there_are_and_a_deleted_account_ends_them(project: ServedApi) -> None:
    path = await account(project, "apps:read")
    headers = bearer((await mint(project, path)).json()["token"])

    async def code() -> int:
        return (await project.client.get(f"{project.path}/apps", headers=headers)).status_code

    async def is_forbidden() -> bool:
        return await code() == 403

    assert await code() == 200
    await project.client.patch(path, json={"spec": {"scopes": ["images:read"]}}, headers=MERGE)
    await eventually(is_forbidden)
    assert (await project.client.delete(path)).status_code == 200

    async def is_gone() -> bool:
        selected = await project.client.get(KEYS, params={"fieldSelector": f"spec.project={project.project_name}"})
        return await code() == 401 and not selected.json()["items"]

    await eventually(is_gone)


async def test_a_lost_answer_is_told_again_and_another_token_is_another(project: ServedApi) -> None:
    path, keyed = await account(project, "apps:read"), {"Idempotency-Key": secrets.token_hex(8)}
    first, again = [await mint(project, path, keyed, duration="1h") for _ in range(2)]
    assert first.json() == again.json()
    assert (await mint(project, path, duration="1h")).json()["token"] != first.json()["token"]


async def test_nobody_gives_an_account_or_its_token_what_they_do_not_have(project: ServedApi) -> None:
    path = await account(project, "apps:read", "secrets:read")
    limited = await key(project, ["serviceaccounts:write", "apps:read"], [project.project_name])
    wrong = [
        await mint(project, path, limited, scopes=["secrets:read"]),
        await mint(project, path, await key(project, ["apps:read"], ["*"])),
        await project.client.patch(path, json={"spec": {"scopes": ["*"]}}, headers={**limited, **MERGE}),
    ]
    assert [answer.status_code for answer in wrong] == [403] * 3
    assert (await mint(project, path, limited, scopes=["apps:read"])).status_code == 201
    whole = bearer((await mint(project, path, limited)).json()["token"])
    assert (await whoami(project, whole))["scopes"] == ["apps:read"]


async def test_what_makes_no_sense_is_refused(project: ServedApi) -> None:
    path = await account(project, "apps:read")
    for body, field in (({"duration": "9000h"}, "duration"), ({"duration": "0s"}, "duration"), ({"x": 1}, "x")):
        answer = await mint(project, path, **body)
        assert (answer.status_code, answer.json()["details"]["causes"][0]["field"]) == (422, field), answer.text
    assert (await mint(project, f"{project.path}/serviceaccounts/absent")).status_code == 404


async def test_a_deleted_project_takes_its_accounts_and_their_keys_along(project: ServedApi) -> None:
    headers = bearer((await mint(project, await account(project, "apps:read"))).json()["token"])
    assert (await whoami(project, headers))["serviceAccount"] == "ci"
    assert (await project.client.delete(f"{ROOT}/projects/{project.project_name}")).status_code == 200

    async def is_gone() -> bool:
        await project.core.resources.deleter.collect()
        code = (await project.client.get("/auth/whoami", headers=headers)).status_code
        selected = await project.client.get(KEYS, params={"fieldSelector": f"spec.project={project.project_name}"})
        return code == 401 and not selected.json()["items"]

    await eventually(is_gone)


async def test_keys_and_accounts_tell_when_they_were_used(project: ServedApi) -> None:
    path = await account(project, "apps:read")
    minted = (await mint(project, path)).json()
    used_before = (await project.client.get(path)).json()["status"]
    uses = CredentialsKeeper(project.core.database, project.core.writer, project.core.clock)

    async def shown() -> list[dict[str, Any]]:
        await uses.show_uses()
        return [(await project.client.get(where)).json() for where in (path, f"{KEYS}/{minted['metadata']['name']}")]

    async def is_told() -> bool:
        # A use is noted beside its request, and by a later one when another key's is being noted at that moment.
        await whoami(project, bearer(minted["token"]))
        return all("lastUsedTime" in document["status"] for document in await shown())

    await eventually(is_told)
    assert "lastUsedTime" not in used_before
    [of_account, of_key] = await shown()
    assert of_account["status"]["lastUsedTime"] == of_key["status"]["lastUsedTime"]
    # Another use soon after is not worth a change of theirs.
    await project.deps.authenticate.look_again([f"Bearer {minted['token']}".encode()])  # type: ignore[attr-defined]
    assert await shown() == [of_account, of_key]
