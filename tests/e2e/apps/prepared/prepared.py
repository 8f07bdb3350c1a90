"""A Function that needs something to be there before its worker starts."""

import os

import nodus

app = nodus.App("prepared")


@app.function(max_workers=1, timeout="60s")
def made() -> str:
    with open("/workspace/made") as file:
        return f"{file.read().strip()} in {os.environ.get('STARTED_BY', 'the public worker')}"


@app.function(max_workers=1, timeout="60s")
def asked() -> str:
    import urllib.request

    with urllib.request.urlopen("http://127.0.0.1:8000/word") as answer:
        return str(answer.read().decode().strip())
