"""A Function that needs something to be there before its worker starts."""

import os
import time
import urllib.error
import urllib.request

import nodus

app = nodus.App("prepared")


@app.function(max_workers=1, timeout="60s")
def made() -> str:
    with open("/workspace/made") as file:
        return f"{file.read().strip()} in {os.environ.get('STARTED_BY', 'the public worker')}"


@app.function(max_workers=1, timeout="120s")
def asked() -> str:
    """What the sidecar says as soon as it listens: it was started before this worker, and may need longer."""
    while True:
        try:
            with urllib.request.urlopen("http://127.0.0.1:8000/word") as answer:
                return str(answer.read().decode().strip())
        except urllib.error.HTTPError:
            raise
        except urllib.error.URLError:
            time.sleep(0.1)
