#!/bin/sh
# Brings Temporal's two databases to the schema of this version; does nothing when they have it. Runs before the server.
set -eu

for database in temporal temporal_visibility; do
    folder=${database#temporal_}
    tool="temporal-sql-tool --plugin postgres12 --ep postgres --port 5432 --user nodus --db $database"
    $tool create || true
    $tool update-schema -d "/etc/temporal/schema/postgresql/v12/$folder/versioned" || {
        $tool setup-schema -v 0.0
        $tool update-schema -d "/etc/temporal/schema/postgresql/v12/$folder/versioned"
    }
done
