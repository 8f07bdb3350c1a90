"""The HTTP edge: parse, authorise, call the domain, render. No SQL and no business rule lives here."""
