"""what workers cost: accounts of those that live, sums by Function, and the segment that an entry of the ledger is for

Revision: 0006, after 0005.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '0006'
down_revision = '0005'
branch_labels = None
depends_on = None


def _amount(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), server_default=sa.text('0'), nullable=False)


def upgrade() -> None:
    op.create_table('worker_accounts',
    sa.Column('uid', sa.Text(), nullable=False),
    sa.Column('org', sa.Text(), nullable=False),
    sa.Column('project', sa.Text(), nullable=False),
    sa.Column('function', sa.Text(), nullable=False),
    sa.Column('function_uid', sa.Text(), nullable=False),
    sa.Column('rate_micro_usd_per_hour', sa.BigInteger(), nullable=False),
    sa.Column('shares', sa.BigInteger(), nullable=False),
    sa.Column('pricebook', sa.Text(), nullable=False),
    sa.Column('restores', sa.Boolean(), server_default=sa.text('false'), nullable=False),
    sa.Column('started_at', sa.DateTime(timezone=True), nullable=True),
    _amount('call_seconds'),
    _amount('covered_call_seconds'),
    _amount('call_micro_usd'),
    sa.Column('calls_until', sa.DateTime(timezone=True), nullable=True),
    _amount('settlements'),
    _amount('settled_seconds'),
    _amount('settled_call_seconds'),
    _amount('idle_micro_usd'),
    _amount('hold'),
    _amount('held_micro_usd'),
    sa.Column('funded_until', sa.DateTime(timezone=True), nullable=False),
    sa.Column('look_at', sa.DateTime(timezone=True), nullable=False),
    sa.PrimaryKeyConstraint('uid')
    )
    op.create_index('worker_accounts_function', 'worker_accounts', ['function_uid'], unique=False)
    op.create_index('worker_accounts_funding', 'worker_accounts', ['look_at'], unique=False)
    op.create_table('function_segments',
    sa.Column('function_uid', sa.Text(), nullable=False),
    sa.Column('segment', sa.Text(), nullable=False),
    sa.Column('org', sa.Text(), nullable=False),
    _amount('amount_micro_usd'),
    _amount('seconds'),
    _amount('covered_seconds'),
    sa.PrimaryKeyConstraint('function_uid', 'segment')
    )
    op.add_column('ledger_transfers', sa.Column('segment', sa.Text(), nullable=True))
    op.add_column('ledger_transfers', sa.Column('seconds', sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column('ledger_transfers', 'seconds')
    op.drop_column('ledger_transfers', 'segment')
    op.drop_table('function_segments')
    op.drop_index('worker_accounts_funding', table_name='worker_accounts')
    op.drop_index('worker_accounts_function', table_name='worker_accounts')
    op.drop_table('worker_accounts')
