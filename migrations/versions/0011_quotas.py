"""quotas of organisations and projects

Revision: 0011, after 0010.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '0011'
down_revision = '0010'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('quotas',
    sa.Column('org', sa.Text(), nullable=False),
    sa.Column('project', sa.Text(), nullable=False),
    sa.Column('counter', sa.Text(), nullable=False),
    sa.Column('amount_max', sa.BigInteger(), nullable=False),
    sa.CheckConstraint('amount_max >= 0', name='quotas_amount'),
    sa.PrimaryKeyConstraint('org', 'project', 'counter')
    )


def downgrade() -> None:
    op.drop_table('quotas')
