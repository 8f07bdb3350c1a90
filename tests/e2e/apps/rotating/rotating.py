"""A Function that tells what its Secrets hold: one whole, one key under another name, one of a pinned version."""

import os

import nodus

app = nodus.App("rotating")


@app.function(timeout="60s", min_workers=1, secrets=[nodus.Secret.from_name("rotated")])
def tell() -> str:
    return os.environ["WORD"]
