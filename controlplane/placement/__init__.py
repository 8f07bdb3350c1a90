"""Which class of capacity work would run on, and why: pure, so that it can be tested as a table.

`demand.py` reads what a spec asks for, `candidates.py` what there is to choose from, `filters.py` says what rules a
class out, `scoring.py` what a class is worth to a profile, and `placing.py` puts them together; `capacity.py` does so
for the spec of a Function and the prices in force. Only `placements.py` knows settings and the time, and remembers.
`controlplane/estimates` shows the outcome before anything is created, `activities/autoscaler.py` starts workers by it.
"""
