"""switches of the operator: kinds whose admissions are paused, organisations whose compute is suspended

Revision: 0010, after 0009.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '0010'
down_revision = '0009'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('operator_switches',
    sa.Column('switch', sa.Text(), nullable=False),
    sa.Column('subject', sa.Text(), nullable=False),
    sa.Column('reason', sa.Text(), nullable=False),
    sa.Column('since', sa.DateTime(timezone=True), nullable=False),
    sa.CheckConstraint("switch IN ('pause', 'suspend')", name='operator_switches_switch'),
    sa.PrimaryKeyConstraint('switch', 'subject')
    )


def downgrade() -> None:
    op.drop_table('operator_switches')
