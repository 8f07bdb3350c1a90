"""Measurements of the hot path, each as a ratio to a floor taken in the same run on the same machine."""
