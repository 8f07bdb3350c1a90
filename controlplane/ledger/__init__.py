"""Money: rates, rounding, charges."""
