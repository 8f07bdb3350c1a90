"""charges of workers: the audit of a Function finds them among those of its calls

Revision: 0007, after 0006.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '0007'
down_revision = '0006'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index('ledger_transfers_workers', 'ledger_transfers', ['function_uid', 'seq'], unique=False, postgresql_where=sa.text('segment IS NOT NULL'))


def downgrade() -> None:
    op.drop_index('ledger_transfers_workers', table_name='ledger_transfers', postgresql_where=sa.text('segment IS NOT NULL'))
