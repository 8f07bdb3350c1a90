"""a queue of rows: calls that wait need no workflow, so those that run ahead of theirs have indexes of their own

Revision: 0003, after 0002.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '0003'
down_revision = '0002'
branch_labels = None
depends_on = None


def _fairly(name: str, condition: str) -> None:
    op.create_index(name, 'calls', ['org', 'project', 'session', 'seq'], unique=False, postgresql_where=sa.text(condition))


def upgrade() -> None:
    op.drop_index('calls_starting', table_name='calls')
    op.drop_index('calls_starting_fairly', table_name='calls')
    op.create_index('calls_ahead', 'calls', ['updated_at'], unique=False, postgresql_where=sa.text("NOT has_workflow AND state <> 'queued' AND dispatches > 0"))
    op.create_index('calls_open', 'calls', ['seq'], unique=False, postgresql_where=sa.text('has_workflow AND seq >= 0'))
    _fairly('calls_starting_fairly', "NOT has_workflow AND state <> 'queued' AND priority >= 0")
    _fairly('calls_queued_fairly', "NOT has_workflow AND state = 'queued' AND priority >= 0")


def downgrade() -> None:
    for name in ('calls_ahead', 'calls_open', 'calls_starting_fairly', 'calls_queued_fairly'):
        op.drop_index(name, table_name='calls')
    op.create_index('calls_starting', 'calls', ['seq'], unique=False, postgresql_where=sa.text('NOT has_workflow AND seq >= 0'))
    _fairly('calls_starting_fairly', 'NOT has_workflow AND priority >= 0')
