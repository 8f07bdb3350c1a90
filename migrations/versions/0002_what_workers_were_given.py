"""what workers were given

Revision: 0002, after 0001.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
revision = '0002'
down_revision = '0001'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('attempt_secrets',
    sa.Column('attempt', sa.Text(), nullable=False),
    sa.Column('secret_uid', sa.Text(), nullable=False),
    sa.Column('version', sa.BigInteger(), autoincrement=False, nullable=False),
    sa.ForeignKeyConstraint(['attempt'], ['attempts.uid'], ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('attempt', 'secret_uid', 'version')
    )
    op.create_index('attempt_secrets_version', 'attempt_secrets', ['secret_uid', 'version'], unique=False)


def downgrade() -> None:
    op.drop_index('attempt_secrets_version', table_name='attempt_secrets')
    op.drop_table('attempt_secrets')
