"""A user whose modules have the names of the server's packages."""

import nodus

app = nodus.App("named")


@app.function(timeout="60s")
def names() -> list[str]:
    import api
    import controlplane
    import runtime
    import tests
    import workers
    import workflows

    return [module.NAME for module in (api, controlplane, runtime, tests, workers, workflows)]


@app.local_entrypoint()
def main() -> None:
    for name in names.remote():
        print(name)
