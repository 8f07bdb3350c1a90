"""Every client over https alone, with the certificate that the first start makes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.fixtures.system import ROOT, System, installation

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with installation(tmp_path_factory.mktemp("tls") / "data") as system:
        system.start("--tls")
        yield system


def test_the_cli_the_sdk_and_kubectl_use_the_https_address(secured: System) -> None:
    variables = secured.variables
    assert variables["NODUS_API_URL"].startswith("https://127.0.0.1:")
    secured.nodus("deploy", str(ROOT / "examples" / "hello.py"))
    call = "import nodus; print(nodus.Function.from_name('hello', 'square').remote(7))"
    assert secured.python(call).strip() == "49"
    assert "hello-square" in secured.kubectl("get", "functions")
    # Payloads that are too large to travel inline go to and come from URLs that the server hands out.
    large = "import nodus; print(len(nodus.Function.from_name('hello', 'greet').remote('x' * 200_000)))"
    assert secured.python(large).strip() == "200007"


def test_a_client_that_was_not_told_whom_to_trust_refuses_the_server(secured: System) -> None:
    environment = {name: value for name, value in secured.environment.items() if name != "SSL_CERT_FILE"}
    done = subprocess.run(
        ["nodus", "get", "functions"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert "certificate" in done.stderr
