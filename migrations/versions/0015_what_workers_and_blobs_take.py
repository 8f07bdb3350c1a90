"""what workers and blobs take, for quotas; workers that live already count as workers and take nothing else

Revision: 0015, after 0014.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '0015'
down_revision = '0014'
branch_labels = None
depends_on = None

# The sums are kept by the database, so that whoever adds or removes a blob, in one statement, keeps them exact. Both rows
# are locked before they are compared, the organisation's first, so two uploads never take the same last place and never
# wait for each other in a circle.
_COUNTED = """
CREATE FUNCTION blobs_are_counted() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    exceeded record;
BEGIN
    IF TG_OP = 'DELETE' THEN
        UPDATE blob_usage SET bytes = bytes - OLD.size_bytes WHERE org = OLD.org AND project = '';
        UPDATE blob_usage SET bytes = bytes - OLD.size_bytes WHERE org = OLD.org AND project = OLD.project;
        RETURN NULL;
    END IF;
    INSERT INTO blob_usage AS u (org, project, bytes)
    VALUES (NEW.org, '', NEW.size_bytes), (NEW.org, NEW.project, NEW.size_bytes)
    ON CONFLICT (org, project) DO UPDATE SET bytes = u.bytes + excluded.bytes;
    SELECT q.project, q.amount_max, u.bytes - NEW.size_bytes AS used INTO exceeded
    FROM quotas q JOIN blob_usage u ON u.org = q.org AND u.project = q.project
    WHERE q.org = NEW.org AND q.project IN ('', NEW.project) AND q.counter = 'storage' AND u.bytes > q.amount_max
    ORDER BY q.project LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'the blobs pass the storage quota' USING ERRCODE = 'NDQ01', DETAIL = row_to_json(exceeded)::text;
    END IF;
    RETURN NULL;
END $$
"""

_SIZES = ('cpu_milli', 'memory_bytes', 'gpus')


def upgrade() -> None:
    for column in _SIZES:
        op.add_column('attempts', sa.Column(column, sa.BigInteger(), server_default=sa.text('0'), nullable=False))
    op.create_index('attempts_of_project', 'attempts', ['org', 'project'], unique=False, postgresql_where=sa.text("state <> 'finished'"))
    op.create_table('blob_usage',
    sa.Column('org', sa.Text(), nullable=False),
    sa.Column('project', sa.Text(), nullable=False),
    sa.Column('bytes', sa.BigInteger(), nullable=False),
    sa.CheckConstraint('bytes >= 0', name='blob_usage_bytes'),
    sa.PrimaryKeyConstraint('org', 'project')
    )
    op.execute(
        "INSERT INTO blob_usage SELECT org, project, sum(size_bytes) FROM blobs GROUP BY org, project "
        "UNION ALL SELECT org, '', sum(size_bytes) FROM blobs GROUP BY org"
    )
    op.execute(_COUNTED)
    op.execute(
        "CREATE TRIGGER counted AFTER INSERT OR DELETE ON blobs FOR EACH ROW EXECUTE FUNCTION blobs_are_counted()"
    )


def downgrade() -> None:
    op.execute("DROP TRIGGER counted ON blobs")
    op.execute("DROP FUNCTION blobs_are_counted()")
    op.drop_table('blob_usage')
    op.drop_index('attempts_of_project', table_name='attempts', postgresql_where=sa.text("state <> 'finished'"))
    for column in _SIZES:
        op.drop_column('attempts', column)
