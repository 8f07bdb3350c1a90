"""A Function with a Secret that its exception tells, and one whose calls print."""

import os
import traceback

import nodus

app = nodus.App("vault")


@app.function(timeout="60s", secrets=[nodus.Secret.from_dict({"TOKEN": "open-sesame-42"})])
def login() -> int:
    raise ValueError(f"cannot log in with {os.environ['TOKEN']}")


@app.function(timeout="60s", max_workers=1)
def say(word: str, padding: bytes) -> int:
    print(f"saying {word}")
    return len(padding)


@app.local_entrypoint()
def main() -> None:
    try:
        login.remote()
    except ValueError as error:
        print("raised:", error)
        print("told:", "open-sesame" in "".join(traceback.format_exception(error)))
    for word in ("one", "two", "three"):
        print("padding:", say.remote(word, b"p" * 200_000))
