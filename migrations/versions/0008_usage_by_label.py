"""usage by label: what a transfer is about keeps its Function's name and its labels, which outlive both objects

Revision: 0008, after 0007.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = '0008'
down_revision = '0007'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column('ledger_transfers', sa.Column('function_name', sa.Text(), nullable=True))
    op.add_column('ledger_transfers', sa.Column('labels', postgresql.JSONB(astext_type=sa.Text()), nullable=True))
    op.create_index('ledger_transfers_time', 'ledger_transfers', ['org', 'created_at'], unique=False)
    op.add_column('calls', sa.Column('function_labels', postgresql.JSONB(astext_type=sa.Text()), nullable=True))


def downgrade() -> None:
    op.drop_column('calls', 'function_labels')
    op.drop_index('ledger_transfers_time', table_name='ledger_transfers')
    op.drop_column('ledger_transfers', 'labels')
    op.drop_column('ledger_transfers', 'function_name')
