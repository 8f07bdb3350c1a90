"""A Function whose Image is changed under its name."""

import os
import time
from pathlib import Path

import nodus

app = nodus.App("changed")
image = nodus.Image.debian_slim().workdir("/srv").run_commands("echo one > /srv/answer")


@app.function(image=image, timeout="120s", max_workers=1, scaledown_window="20m")
def answer(seconds: float) -> str:
    """What the image says, after a while."""
    time.sleep(seconds)
    return os.environ.get("ANSWER") or Path("/srv/answer").read_text().strip()
