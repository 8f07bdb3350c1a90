"""Processes and their wiring: the composition root. Nothing imports this package."""
