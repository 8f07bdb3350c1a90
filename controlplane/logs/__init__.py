"""What workers print: stored in chunks as nodes send them, read as the log of a worker, a call, a Function, an App."""
