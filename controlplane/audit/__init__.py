"""The audit log: who changed what, when and from where, and what was refused (decision 0041).

`requests.py` says whose request a write belongs to, and the store writes its events in the write's own transaction;
`refusals.py` keeps what was refused until it is written. `chain.py` seals what was written, `verification.py` finds
what was tampered with, `retention.py` forgets what is old. `reading.py` makes AuditEvents of the rows.
"""
