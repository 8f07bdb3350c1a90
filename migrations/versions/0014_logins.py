"""logins of people through a page, by which a program gets a key

Revision: 0014, after 0013.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = '0014'
down_revision = '0013'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('logins',
    sa.Column('secret_hash', sa.LargeBinary(), nullable=False),
    sa.Column('user_code_hash', sa.LargeBinary(), nullable=True),
    sa.Column('challenge', sa.Text(), nullable=True),
    sa.Column('client', sa.Text(), nullable=False),
    sa.Column('host', sa.Text(), nullable=False),
    sa.Column('address', sa.Text(), nullable=False),
    sa.Column('state', sa.Text(), nullable=False),
    sa.Column('grants', postgresql.JSONB(astext_type=sa.Text()), nullable=True),
    sa.Column('interval_seconds', sa.Integer(), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('expires_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('polled_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('redeemed_with', sa.LargeBinary(), nullable=True),
    sa.CheckConstraint("(state = 'approved') = (grants IS NOT NULL)", name='logins_grants'),
    sa.CheckConstraint("state IN ('pending', 'approved', 'denied')", name='logins_state'),
    sa.PrimaryKeyConstraint('secret_hash'),
    sa.UniqueConstraint('user_code_hash')
    )
    op.create_index('logins_expires', 'logins', ['expires_at'], unique=False)


def downgrade() -> None:
    op.drop_index('logins_expires', table_name='logins')
    op.drop_table('logins')
