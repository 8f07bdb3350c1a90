"""The domain: kinds, store, calls, ledger, capacity, identity. No HTTP, no Temporal."""
