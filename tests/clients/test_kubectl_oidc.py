"""kubectl with a token of an identity provider in place of a key."""

from __future__ import annotations

from pathlib import Path

from tests.fixtures.app import ROOT, api_settings, listening, serve
from tests.fixtures.clients import SCRIPTS, ClientSide
from tests.fixtures.issuer import issuer
from workers.client_files import Access, write_kubeconfig
from workers.tls import TlsFiles


async def test_kubectl_works_with_a_token_of_the_identity_provider(
    database_url: str, tmp_path: Path, tls_files: TlsFiles
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with issuer() as provider:
        settings = api_settings(database_url, tmp_path, **provider.settings)
        async with serve(settings) as api, listening(api.deps, tls_files) as https_url:
            body = {"metadata": {"name": "ada"}, "spec": {"email": "ada@example.com", "role": "Viewer"}}
            assert (await api.client.post(f"{ROOT}/members", json=body)).status_code == 201
            kubeconfig = tmp_path / "kubeconfig"
            access = Access(api_url=api.url, https_url=https_url, api_key="", project="default")
            write_kubeconfig(kubeconfig, access, tls_files.authority)
            side = ClientSide(api=api, home=home, kubeconfig=kubeconfig)
            command = (SCRIPTS / "kubectl", "--token", provider.token())
            assert "default" in (await side.run(*command, "get", "projects")).stdout
            whoami = (await side.run(*command, "auth", "whoami", "-o", "yaml")).stdout
            assert (await api.client.get(f"{ROOT}/members/ada")).json()["status"]["user"] in whoami
            assert "yes" in (await side.run(*command, "auth", "can-i", "list", "apps")).stdout
            assert "no" in (await side.run(*command, "auth", "can-i", "create", "apps", check=False)).stdout
            stranger = (SCRIPTS / "kubectl", "--token", provider.token(email="eve@example.com"))
            assert "is no Member here" in str(await side.run(*stranger, "get", "projects", check=False))
