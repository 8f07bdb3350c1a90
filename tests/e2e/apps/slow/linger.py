"""A program that does not end by itself."""

import time

import nodus

app = nodus.App("linger")


@app.function()
def nothing():
    return None


@app.local_entrypoint()
def main():
    print("lingering", flush=True)
    time.sleep(600)
