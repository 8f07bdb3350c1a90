"""Which class of capacity work would run on, and why: pure, so that it can be tested as a table.

`demand.py` reads what a spec asks for, `candidates.py` what there is to choose from, `filters.py` says what rules a
class out, `scoring.py` what a class is worth to a profile, and `placing.py` puts them together. Nothing here reads a
clock, a database or a setting. `controlplane/estimates` shows the outcome before anything is created.
"""
