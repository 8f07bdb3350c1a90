"""A Function whose image cannot be built."""

import nodus

app = nodus.App("broken-image")


@app.function(image=nodus.Image.debian_slim().pip_install("no-such-package-of-ours"), timeout="60s")
def never() -> None:
    pass


@app.local_entrypoint()
def main() -> None:
    try:
        never.remote()
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
