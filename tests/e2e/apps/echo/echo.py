"""A Function that prints, and a user who reads each call's log in the moment its result is there."""

import subprocess

import nodus

app = nodus.App("echo")


@app.function(timeout="60s", max_workers=1)
def say(word: str) -> str:
    print(f"saying {word}")
    return word


@app.local_entrypoint()
def main() -> None:
    for word in ("one", "two", "three"):
        call = say.spawn(word)
        call.get()
        log = subprocess.run(["nodus", "logs", f"functioncall/{call.name}"], capture_output=True, text=True, check=True)
        print("log:", log.stdout.strip())
