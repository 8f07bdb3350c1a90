"""Functions that may reach some of the world."""

import urllib.error
import urllib.request

import nodus

app = nodus.App("outward")


def reached(host: str) -> str:
    """What a plain client of the standard library meets at `host`."""
    try:
        with urllib.request.urlopen(f"http://{host}/", timeout=30) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.reason}"
    except OSError as error:
        return type(error).__name__


@app.function(network=nodus.Egress.allow("allowed.test"), max_workers=1, timeout="120s")
def listed(host: str) -> str:
    return reached(host)


@app.function(network=nodus.Egress.deny(), max_workers=1, timeout="120s")
def denied(host: str) -> str:
    return reached(host)


@app.function(max_workers=1, timeout="120s")
def unset(host: str) -> str:
    return reached(host)
