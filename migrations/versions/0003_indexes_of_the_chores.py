"""indexes of the chores: reports by state, silent calls after the last seen, what may be forgotten

Revision: 0003, after 0001.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '0003'
down_revision = '0001'
branch_labels = None
depends_on = None

REPORTING = sa.text("state IN ('deciding', 'done') AND task_token IS NOT NULL")
SILENT = sa.text("state IN ('deciding', 'waiting', 'done') AND has_workflow AND task_token IS NULL")
ENDED = sa.text("kind = 'FunctionCall' AND fields ->> 'status.phase' IN ('Succeeded', 'Failed', 'Cancelled')")
EVENTS = sa.text("kind = 'Event'")


def upgrade() -> None:
    op.drop_index('calls_reporting', table_name='calls')
    op.create_index('calls_reporting', 'calls', ['state', 'seq'], unique=False, postgresql_where=REPORTING)
    op.drop_index('calls_silent', table_name='calls')
    op.create_index('calls_silent', 'calls', ['updated_at', 'uid'], unique=False, postgresql_where=SILENT)
    op.create_index('changes_ended_calls', 'changes', ['time', 'rv'], unique=False, postgresql_where=ENDED)
    op.create_index('changes_events', 'changes', ['time', 'rv'], unique=False, postgresql_where=EVENTS)


def downgrade() -> None:
    op.drop_index('changes_events', table_name='changes')
    op.drop_index('changes_ended_calls', table_name='changes')
    op.drop_index('calls_silent', table_name='calls')
    op.create_index('calls_silent', 'calls', ['updated_at'], unique=False, postgresql_where=SILENT)
    op.drop_index('calls_reporting', table_name='calls')
    op.create_index('calls_reporting', 'calls', ['seq'], unique=False, postgresql_where=REPORTING)
