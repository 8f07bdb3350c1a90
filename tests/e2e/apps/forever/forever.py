"""A client that holds its App until it is killed."""

import time

import nodus

app = nodus.App("forever")


@app.function(timeout="600s", secrets=[nodus.Secret.from_dict({"TOKEN": "x"})])
def nap() -> None:
    time.sleep(500)


@app.local_entrypoint()
def main() -> None:
    nap.spawn()
    print("spawned", flush=True)
    time.sleep(500)
