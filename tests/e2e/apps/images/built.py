"""Functions whose images the server builds: a package of the index, files, variables, a folder and a command."""

import os
from pathlib import Path

import nodus

app = nodus.App("images")
ASSETS = Path(__file__).parent / "assets"
image = (
    nodus.Image.debian_slim()
    .pip_install("iniconfig==2.0.0")
    .env({"GREETING": "hello from the image"})
    .add_local_dir(ASSETS, "/assets")
    .add_local_file(ASSETS / "weights.txt", "/workspace/one.txt")
    .run_commands("mkdir -p /assets/made", "echo made > /assets/made/by-a-command")
    .workdir("/srv/app")
)


@app.function(image=image, timeout="60s", env={"OWN": "of the function"})
def look() -> list[str]:
    import iniconfig

    Path("written").write_text("x")
    read_only = False
    try:
        Path("/assets/weights.txt").write_text("x")
    except OSError:
        read_only = True
    return [
        f"package: {iniconfig.IniConfig.__name__}",
        f"variables: {os.environ['GREETING']}, {os.environ['OWN']}",
        f"file: {Path('/assets/weights.txt').read_text().strip()} {Path('/workspace/one.txt').read_text().strip()}",
        f"made: {Path('/assets/made/by-a-command').read_text().strip()}",
        f"folder: {os.getcwd()}",
        f"read-only: {read_only}",
    ]


@app.local_entrypoint()
def main() -> None:
    for line in look.remote():
        print(line)
