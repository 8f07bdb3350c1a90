"""The kinds themselves, one module each, and the table that lists them."""
