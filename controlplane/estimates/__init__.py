"""What something will cost before it is created, and what binds its creation to that.

`estimator.py` gathers the facts, `controlplane/placement` says what it would run on and at which rate, `bands.py` what
such calls have cost, and `quoting.py` makes the Estimate and its ETag of both. `resources/` asks on dry-runs, on
creates that are bound by `If-Match`, and for Functions; an ordinary create of a call asks for nothing (decision 0034).
`refreshing.py` keeps the estimates of Functions true to their calls and to prices.
"""
