"""Measurements of the Kubernetes side: pages of a large store, idle watches, and how soon a watcher sees a commit.

`python -m bench machinery` runs them on PostgreSQL and API processes of their own. The path: `server.py` starts those,
`filling.py` fills the store, `pages.py` and `watching.py` measure, `report.py` prints, `run.py` puts them together.
"""
