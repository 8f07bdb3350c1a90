"""Deterministic orchestration and the pure decisions behind it."""
