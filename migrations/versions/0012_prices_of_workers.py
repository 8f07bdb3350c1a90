"""the price of a worker travels with it: on its row, on the calls it holds, and into the ledger with what it ran on

Revision: 0012, after 0011.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '0012'
down_revision = '0011'
branch_labels = None
depends_on = None


def _price(table: str, offering: str) -> None:
    zero, empty = sa.text("'0'"), sa.text("''")
    op.add_column(table, sa.Column('rate_micro_usd_per_hour', sa.BigInteger(), server_default=zero, nullable=False))
    op.add_column(table, sa.Column('pricebook', sa.Text(), server_default=empty, nullable=False))
    op.add_column(table, sa.Column('offering', sa.Text(), server_default=sa.text(f"'{offering}'"), nullable=False))


def upgrade() -> None:
    _price('attempts', 'local')
    _price('calls', '')
    op.add_column(
        'worker_accounts', sa.Column('offering', sa.Text(), server_default=sa.text("'local'"), nullable=False)
    )
    op.add_column('ledger_transfers', sa.Column('offering', sa.Text(), nullable=True))
    # Workers that live now go on at the rate of their account, and one without an account is free.
    op.execute(
        'UPDATE attempts a SET rate_micro_usd_per_hour = w.rate_micro_usd_per_hour, pricebook = w.pricebook '
        'FROM worker_accounts w WHERE w.uid = a.uid'
    )
    op.execute(
        'UPDATE calls c SET rate_micro_usd_per_hour = a.rate_micro_usd_per_hour, pricebook = a.pricebook, '
        'offering = a.offering FROM attempts a WHERE a.uid = c.attempt AND c.state = \'running\''
    )


def downgrade() -> None:
    op.drop_column('ledger_transfers', 'offering')
    op.drop_column('worker_accounts', 'offering')
    for table in ('calls', 'attempts'):
        for name in ('offering', 'pricebook', 'rate_micro_usd_per_hour'):
            op.drop_column(table, name)
