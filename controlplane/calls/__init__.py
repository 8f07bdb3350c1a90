"""The life of a FunctionCall: queue, claims, outcomes, and the phases between."""
