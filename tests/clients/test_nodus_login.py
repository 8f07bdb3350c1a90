"""`nodus login` and `logout`, unmodified, with a person at the pages."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.api.test_members import member
from tests.fixtures.app import ROOT, ServedApi, api_settings, serve
from tests.fixtures.clients import CLIENT_SECONDS_MAX, SCRIPTS, ClientSide, Finished
from tests.fixtures.eventually import eventually
from tests.fixtures.login_browser import Browser


@pytest.fixture
async def login_api(database_url: str, tmp_path: Path) -> AsyncIterator[ServedApi]:
    """A server whose programs ask every second."""
    async with serve(api_settings(database_url, tmp_path, login_poll_seconds=1)) as served:
        yield served


@pytest.fixture
def laptop(login_api: ServedApi, tmp_path: Path) -> ClientSide:
    """A computer on which nobody has logged in, with a browser that only notes what it is to open."""
    home = tmp_path / "laptop"
    (home / "bin").mkdir(parents=True)
    opener = home / "bin" / "xdg-open"
    opener.write_text(f'#!/bin/sh\nprintf %s "$1" > {home}/opened\n')
    opener.chmod(0o755)
    return ClientSide(api=login_api, home=home, kubeconfig=home / "unused")


async def nodus(side: ClientSide, *words: str, check: bool = True) -> Finished:
    return await side.run(*_command(side), *words, check=check)


def _command(side: ClientSide) -> tuple[str | Path, ...]:
    path = f"PATH={side.home / 'bin'}:{side.environment['PATH']}"
    return ("env", path, f"NODUS_CONFIG={side.home / 'config'}", SCRIPTS / "nodus")


async def _line(stream: asyncio.StreamReader, pattern: str) -> str:
    """The first group of the first line that matches."""
    async with asyncio.timeout(CLIENT_SECONDS_MAX):
        while line := (await stream.readline()).decode():
            if found := re.search(pattern, line):
                return found[1]
    raise AssertionError(f"the program ended without saying {pattern}")


async def _end(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    async with asyncio.timeout(CLIENT_SECONDS_MAX):
        stdout, stderr = await process.communicate()
    return process.returncode, (stdout + stderr).decode()


async def _begin(side: ClientSide) -> tuple[asyncio.subprocess.Process, str]:
    process = await side.start(*_command(side), "login", "--device", "--api-url", side.api.url)
    assert process.stdout is not None
    assert process.stderr is not None
    found = [
        asyncio.create_task(_line(stream, r"(http\S+user_code=\S+)")) for stream in (process.stdout, process.stderr)
    ]
    done, others = await asyncio.wait(found, return_when=asyncio.FIRST_COMPLETED)
    url = next(iter(done)).result()
    for other in others:
        other.cancel()
    return process, url


async def test_a_login_by_code_makes_a_key_and_a_logout_ends_it(laptop: ClientSide) -> None:
    api = laptop.api
    name, headers = await member(api, "Member", "ada")
    process, url = await _begin(laptop)
    browser = Browser()
    page = await browser.send(await browser.open(url), credential=headers["Authorization"].removeprefix("Bearer "))
    assert "127.0.0.1" in page.text
    assert "nodus-cli" in page.text
    assert page.options == {"project.default": ["default"]}
    assert "Approved" in (await browser.send(page, decision="approve")).text
    code, told = await _end(process)
    assert code == 0, told
    assert "Logged in to org default" in told

    whoami = (await nodus(laptop, "whoami")).stdout
    assert "default" in whoami
    keys = (await api.client.get(f"{ROOT}/apikeys")).json()["items"]
    [key] = [item for item in keys if item["metadata"]["name"].startswith("nodus-cli-")]
    assert key["metadata"]["ownerReferences"][0]["name"] == name
    assert "expirationTime" in key["spec"]
    [registered] = (await api.client.get(f"{ROOT}/sshkeys")).json()["items"]
    assert registered["status"]["user"] == key["status"]["user"]

    assert "Logged out" in str(await nodus(laptop, "logout"))
    left = (await api.client.get(f"{ROOT}/apikeys")).json()["items"]
    assert key["metadata"]["name"] not in {item["metadata"]["name"] for item in left}


async def test_a_login_that_is_denied_says_so(laptop: ClientSide) -> None:
    process, url = await _begin(laptop)
    browser = Browser()
    page = await browser.send(await browser.open(url), credential=laptop.api.key)
    assert "Denied" in (await browser.send(page, decision="deny")).text
    code, told = await _end(process)
    assert (code, "denied" in told) == (1, True), told


async def test_a_login_through_the_browser_calls_the_program_back(laptop: ClientSide) -> None:
    opened = laptop.home / "opened"
    process = await laptop.start(*_command(laptop), "login", "--api-url", laptop.api.url)

    async def is_opened() -> bool:
        return opened.exists() and "state=" in opened.read_text()

    await eventually(is_opened)
    browser = Browser()
    page = await browser.send(await browser.open(opened.read_text()), credential=laptop.api.key)
    page = await browser.send(page, decision="approve", only="yes")
    assert page.response.status_code == 303
    back = await browser.client.get(page.response.headers["location"])
    assert "Signed in" in back.text
    code, told = await _end(process)
    assert code == 0, told
    keys = (await laptop.api.client.get(f"{ROOT}/apikeys")).json()["items"]
    assert [key["status"]["projects"] for key in keys if key["metadata"]["name"].startswith("nodus-")] == [["default"]]
    assert "default" in (await nodus(laptop, "whoami")).stdout


async def test_a_login_with_a_token_stores_it(laptop: ClientSide) -> None:
    piped = ("env", f"KEY={laptop.api.key}", "sh", "-c", 'printf %s "$KEY" | "$@"', "sh", *_command(laptop))
    done = await laptop.run(*piped, "login", "--with-token", "--api-url", laptop.api.url)
    assert "Logged in" in str(done)
    assert "default" in (await nodus(laptop, "whoami")).stdout


async def test_the_command_line_invites(laptop: ClientSide) -> None:
    words = ("env", f"NODUS_API_URL={laptop.api.url}", f"NODUS_API_KEY={laptop.api.key}", *_command(laptop))
    done = await laptop.run(*words, "create", "invite", "--email", "Lin@example.com", "--projects", "default")
    [made] = (await laptop.api.client.get(f"{ROOT}/invites")).json()["items"]
    assert (
        f"Invited lin@example.com as Member; the link in their email works until {made['status']['expirationTime']}"
        in (done.stdout + done.stderr)
    )
    assert made["spec"]["projects"] == ["default"]


async def test_a_viewer_logs_in_as_well(laptop: ClientSide) -> None:
    _, headers = await member(laptop.api, "Viewer", "vera")
    process, url = await _begin(laptop)
    browser = Browser()
    page = await browser.send(await browser.open(url), credential=headers["Authorization"].removeprefix("Bearer "))
    assert "Approved" in (await browser.send(page, decision="approve")).text
    code, told = await _end(process)
    assert code == 0, told
    assert "Logged out" in str(await nodus(laptop, "logout"))
