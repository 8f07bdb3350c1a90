"""The reading commands of the public `nodus` command line: what each must show (protocol §8)."""

from __future__ import annotations

import json
import re
import secrets
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from activities.offerings import PublishOfferings
from controlplane.ledger.credits import GrantCredit
from controlplane.ledger.pricebook import load_books
from tests.api.test_access import key
from tests.api.test_billing import Charge
from tests.fixtures.app import FUNCTION, ServedApi, api_settings, serve
from tests.fixtures.clients import SCRIPTS, ClientSide, Finished
from tests.fixtures.eventually import eventually

EXAMPLE_BOOK = Path(__file__).resolve().parents[2] / "deploy" / "pricebooks" / "example.yaml"
WIDE = "APP IMAGE GPU MIN MAX"
HEADINGS = {
    "get functions": "NAME PHASE READY QUEUED RUNNING $/H SPEND AGE",
    "get fn -o wide": f"NAME PHASE READY QUEUED RUNNING $/H SPEND AGE {WIDE}",
    "get fn -A": "NAMESPACE NAME PHASE READY QUEUED RUNNING $/H SPEND AGE",
    "get fn --show-labels": "NAME PHASE READY QUEUED RUNNING $/H SPEND AGE LABELS",
    "get fc": "NAME FUNCTION PHASE REASON RETRIES AGE DURATION",
    "get call -o wide": "NAME FUNCTION PHASE REASON RETRIES AGE DURATION SESSION MAP INDEX WORKER COST",
    "get app": "NAME PHASE VERSION MEMBERS READY EPHEMERAL AGE",
    "get img": "NAME PHASE BASE DIGEST AGE",
    "get sec": "NAME TYPE VERSION KEYS AGE",
    "get prj": "NAME PHASE AGE",
}
OBJECTS: dict[str, dict[str, Any]] = {
    "functioncalls": {
        "metadata": {"name": "c"},
        "spec": {"function": "f", "input": {"encoding": "JSON", "inline": "e30="}},
    },
    "apps": {"metadata": {"name": "a"}, "spec": {}},
    "images": {"metadata": {"name": "i"}, "spec": {"base": "nodus/python:3.11"}},
    "secrets": {"metadata": {"name": "s"}, "spec": {"stringData": {"K": "v"}}},
}


async def nodus(side: ClientSide, line: str, *, check: bool = True) -> Finished:
    variables = {"NODUS_API_URL": side.api.url, "NODUS_API_KEY": side.api.key, "NODUS_PROJECT": side.project}
    words = [f"{name}={value}" for name, value in variables.items()]
    return await side.run("env", *words, SCRIPTS / "nodus", *shlex.split(line), check=check)


@pytest.fixture
async def side(client_side: ClientSide) -> ClientSide:
    """A project with an object of each kind that users make."""
    await client_side.api.function("f")
    for plural, body in OBJECTS.items():
        await client_side.api.create(plural, body)
    return client_side


@pytest.mark.parametrize("line", HEADINGS)
async def test_lists_have_the_columns_of_their_kind(side: ClientSide, line: str) -> None:
    heading, *rows = (await nodus(side, line)).stdout.splitlines()
    assert " ".join(heading.split()) == HEADINGS[line]
    assert rows
    if "-A" in line:
        assert side.project in {row.split()[0] for row in rows}


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("api-resources", r"functioncalls +fc,call +nodus.dev/v1 +true +FunctionCall"),
        ("get function f -o yaml", r"kind: Function\n"),
        ("get functions --field-selector metadata.name=f -o name", r"function.nodus.dev/f\n"),
        ("describe function/f", r"Phase: +Running"),
        ("explain functioncall.spec", r"mapIndex\t<integer>\n +\w+"),
        ("explain functions", r"DESCRIPTION:\n +\w+"),
        ("whoami", r"Scopes: +\*"),
        ("auth can-i create functions", r"yes"),
        ("events", r"Events: +<none>"),
        ("top functions", r"f +-"),
        ("wait function/f --for=jsonpath='{.status.phase}'=Running --timeout=60s", r"condition met"),
    ],
)
async def test_reading_commands_show_what_they_are_for(side: ClientSide, line: str, shown: str) -> None:
    assert re.search(shown, (await nodus(side, line)).stdout)


async def test_a_limited_key_is_told_what_it_may_not(side: ClientSide) -> None:
    token = (await key(side.api, ["functions:read"], [side.project]))["Authorization"].removeprefix("Bearer ")
    limited = replace(side, api=replace(side.api, key=token))
    assert "yes" in (await nodus(limited, "auth can-i get functions")).stdout
    assert "no" in (await nodus(limited, "auth can-i create functions", check=False)).stdout
    assert "secrets:read" in (await nodus(limited, "get secrets", check=False)).stderr


@pytest.mark.parametrize(
    ("filters", "shown"),
    [
        ("", {"cpu-1x2", "h100-sxm-80g-x1-us", "h100-sxm-80g-x1-us-spot", "h100-sxm-80g-x8-us", "l40s-48g-x1-eu"}),
        ("--gpu H100", {"h100-sxm-80g-x1-us", "h100-sxm-80g-x1-us-spot", "h100-sxm-80g-x8-us", "h100-pcie-80g-x1-eu"}),
        ("--gpu H100 --count 8", {"h100-sxm-80g-x8-us"}),
        ("--gpu H100 --region eu", {"h100-pcie-80g-x1-eu"}),
        ("--gpu H100 --interruptible", {"h100-sxm-80g-x1-us-spot"}),
    ],
)
async def test_gpus_are_listed_with_their_prices_and_by_every_filter(
    client_side: ClientSide, filters: str, shown: set[str]
) -> None:
    [book] = load_books(EXAMPLE_BOOK)
    await client_side.api.core.writer.write(PublishOfferings("default", book, []))
    heading, *rows = (await nodus(client_side, f"get gpus {filters}")).stdout.splitlines()
    assert " ".join(heading.split()) == "NAME GPU GPUS CPU MEMORY REGION INTERRUPTIBLE AVAILABILITY FREE $/H"
    names = {row.split()[0] for row in rows}
    assert shown <= names if not filters else shown == names
    [row] = [row for row in rows if row.split()[0] == sorted(shown)[-1]]
    assert "Unavailable" in row
    # Prices are about no project, so a key that is limited to some sees them all.
    token = (await key(client_side.api, ["functions:read"], [client_side.project]))["Authorization"]
    limited = replace(client_side, api=replace(client_side.api, key=token.removeprefix("Bearer ")))
    assert len((await nodus(limited, f"get gpus {filters}")).stdout.splitlines()) == 1 + len(rows)


async def test_a_token_of_a_service_account_is_minted_and_used(side: ClientSide) -> None:
    await side.api.create("serviceaccounts", {"metadata": {"name": "ci"}, "spec": {"scopes": ["functions:read"]}})
    minted = (await nodus(side, "create token sa/ci --duration 720h --scope functions:read")).stdout
    token = re.search(r"nodus_[\w-]{43}", minted)
    assert token is not None
    limited = replace(side, api=replace(side.api, key=token[0]))
    told = (await nodus(limited, "whoami")).stdout
    assert re.search(r"functions:read", told)
    assert "ci" in told
    assert "yes" in (await nodus(limited, "auth can-i get functions")).stdout
    line = f"create apikey bound-{secrets.token_hex(4)} --service-account ci --scopes functions:read"
    assert re.search(r"nodus_[\w-]{43}", (await nodus(side, line)).stdout)


async def test_a_key_is_created_used_listed_and_revoked(side: ClientSide) -> None:
    name = f"ci-{secrets.token_hex(4)}"
    line = f"create apikey {name} --scopes functions:read --projects {side.project} --expires 720h --description CI"
    token = re.search(r"nodus_[\w-]{43}", (await nodus(side, line)).stdout)
    assert token is not None
    limited = replace(side, api=replace(side.api, key=token[0]))
    assert re.search(r"Scopes: +functions:read", (await nodus(limited, "whoami")).stdout)
    assert "function/f" in (await nodus(limited, "get functions -o name")).stdout.replace(".nodus.dev", "")
    heading, *rows = (await nodus(side, "get apikeys")).stdout.splitlines()
    assert heading.split() == ["NAME", "PREFIX", "SCOPES", "PROJECTS", "EXPIRES", "LAST", "USED", "AGE"]
    [row] = [row for row in rows if row.startswith(name)]
    assert token[0][:12] in row
    assert token[0] not in row
    await nodus(side, f"delete apikey {name}")

    async def is_refused() -> bool:
        refused = await nodus(limited, "whoami", check=False)
        return refused.code != 0 and "Unauthorized" in refused.stderr

    await eventually(is_refused)


async def test_an_apply_that_is_rehearsed_prints_the_estimate(client_side: ClientSide) -> None:
    manifest = client_side.home / "f.json"
    body = {"apiVersion": "nodus.dev/v1", "kind": "Function", "metadata": {"name": "f"}, "spec": FUNCTION}
    manifest.write_text(json.dumps(body))
    line = f"apply --dry-run=server -o estimate -f {manifest}"
    # New, and again when it exists: the live estimate of an object that would not change.
    new = (await nodus(client_side, line)).stdout
    assert re.search(r"est\. \$0\.003 .* ~2s–8s \(cold\) · hold \$0\.003 · no worker is ready", new), new
    assert "blocked" not in new
    await nodus(client_side, f"apply -f {manifest}")
    assert re.search(r"est\. \$0\.003", (await nodus(client_side, line)).stdout)
    assert re.search(r"est\. \$0\.003", (await nodus(client_side, "describe function/f")).stdout)


async def test_what_no_host_has_is_priced_by_the_book_and_said_to_be_blocked(
    client_side: ClientSide, database_url: str, tmp_path: Path
) -> None:
    manifest = client_side.home / "g.json"
    spec = {**FUNCTION, "resources": {"gpu": "H100"}, "placement": {"interruptible": "Never", "profile": "Cost"}}
    body = {"apiVersion": "nodus.dev/v1", "kind": "Function", "metadata": {"name": "g"}, "spec": spec}
    manifest.write_text(json.dumps(body))
    async with serve(api_settings(database_url, tmp_path, pricebook_file=EXAMPLE_BOOK)) as priced:
        line = f"apply --dry-run=server -o estimate -f {manifest}"
        told = (await nodus(replace(client_side, api=priced), line)).stdout
    # The timeout of 300 s at 2.45 USD an hour.
    shown = r"est\. \$0\.204167 .*~1–4 min \(cold\) .* blocked: .*does not offer: `spec\.resources\.gpu`"
    assert re.search(shown, told), told


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("billing", r"Available +\$0\.90 .*\nReserved +\$0\.00 .*\nThis month +\$0\.10\n"),
        ("billing usage", r"START +OBJECT +METER +SEGMENT +QUANTITY +AMOUNT\n.*function/paid +ComputeSeconds +Running"),
        ("get usage -o wide", r"function/paid .* 10000 +\$0\.10 +s +- +\$0\.036/hour +txn_"),
        ("get usage --group-by kind,label:team --since 7d", r"KIND +TEAM +AMOUNT\nFunction +ml +\$0\.10"),
        ("get usage --object function/paid --until 2020-01-01", r"\A(START.*\n)?\Z"),
        ("get transactions", r"TYPE +AMOUNT +BALANCE.*\n.*Capture +-\$0\.10 +\$0\.90 +functioncall/c1\n.*Grant +\$1"),
        ("get transactions --type Grant -o wide", r"Grant:welcome +CreditGranted +for a start"),
        ("get billingaccounts", r"NAME +AVAILABLE"),
        ("get creditgrants", r"NAME.*\nwelcome "),
        ("get creditgrants welcome -o yaml", r"remainingUSD: ['\"]?0\.90"),
    ],
)
async def test_money_is_shown_by_every_command_for_it(api: ServedApi, tmp_path: Path, line: str, shown: str) -> None:
    await api.core.writer.write(GrantCredit("default", "welcome", 1_000_000, "for a start"))
    await api.core.writer.write(Charge(1, "paid", 10_000, "default", {"team": "ml"}))
    side = ClientSide(api=api, home=tmp_path, kubeconfig=tmp_path / "kubeconfig")
    told = (await nodus(side, line)).stdout
    assert re.search(shown, told), told


@pytest.mark.parametrize("line", ["billing redeem X", "billing portal", "billing deal", "billing top-up 20"])
async def test_commands_for_cards_say_that_none_is_taken(side: ClientSide, line: str) -> None:
    refused = await nodus(side, line, check=False)
    assert "PaymentsNotConfigured" in refused.stdout + refused.stderr
    assert "grant credit" in refused.stdout + refused.stderr


async def test_budgets_are_made_shown_and_told_with_the_account(api: ServedApi, tmp_path: Path) -> None:
    side = ClientSide(api=api, home=tmp_path, kubeconfig=tmp_path / "kubeconfig")
    line = "create budget research --limit 2000 --period Total --scope-project default"
    assert "budget/research created" in (await nodus(side, line)).stdout
    await nodus(side, "create budget all --limit 300 --action Notify")
    heading, *rows = (await nodus(side, "get budgets")).stdout.splitlines()
    assert " ".join(heading.split()) == "NAME PERIOD LIMIT SPENT HELD REMAINING USED%"
    assert " ".join(rows[1].split()) == "research Total 2000.00 0.00 0.00 2000.00 0%"
    assert "action: Notify" in (await nodus(side, "get budget all -o yaml")).stdout
    assert re.search(r"This month +\$0\.00 +budget \w+ 0 % of", (await nodus(side, "billing")).stdout)
    await nodus(side, "delete budget research")
    assert "research" not in (await nodus(side, "get bud")).stdout
