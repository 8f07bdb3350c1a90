"""how the time of a worker is rounded up at its end; those that live now are charged by the second

Revision: 0017, after 0016.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '0017'
down_revision = '0016'
branch_labels = None
depends_on = None

_NAMES = ('billing_increment_seconds', 'billing_minimum_seconds')


def upgrade() -> None:
    for name in _NAMES:
        op.add_column('worker_accounts', sa.Column(name, sa.BigInteger(), server_default='1', nullable=False))


def downgrade() -> None:
    for name in reversed(_NAMES):
        op.drop_column('worker_accounts', name)
