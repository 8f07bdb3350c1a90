"""what workers and blobs take, for quotas; workers that live already count as workers and take nothing else

Revision: 0016, after 0015.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '0016'
down_revision = '0015'
branch_labels = None
depends_on = None

_SIZES = ('cpu_milli', 'memory_bytes', 'gpus')


def upgrade() -> None:
    for column in _SIZES:
        op.add_column('attempts', sa.Column(column, sa.BigInteger(), server_default=sa.text('0'), nullable=False))
    op.create_index('attempts_of_project', 'attempts', ['org', 'project'], unique=False, postgresql_where=sa.text("state <> 'finished'"))


def downgrade() -> None:
    op.drop_index('attempts_of_project', table_name='attempts', postgresql_where=sa.text("state <> 'finished'"))
    for column in _SIZES:
        op.drop_column('attempts', column)
