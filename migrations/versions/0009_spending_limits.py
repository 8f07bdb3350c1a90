"""spending limits: what Budgets and capped Functions have spent and hold, and the reservations of running calls

Revision: 0009, after 0008.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '0009'
down_revision = '0008'
branch_labels = None
depends_on = None

# The code asks before it reserves; whatever is wrong there, no limit that blocks is passed. What was done is charged
# all the same, so only a growing reservation is judged.
_WITHIN = """
CREATE FUNCTION spending_stays_within() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.blocks AND NEW.held_micro_usd > OLD.held_micro_usd
        AND NEW.spent_micro_usd + NEW.held_micro_usd > NEW.limit_micro_usd THEN
        RAISE EXCEPTION 'a reservation passes the limit %', NEW.id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$
"""


def upgrade() -> None:
    op.add_column('calls', sa.Column('reserved_micro_usd', sa.BigInteger(), server_default=sa.text('0'), nullable=False))
    op.create_table('spending_limits',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('org', sa.Text(), nullable=False),
    sa.Column('blocks', sa.Boolean(), server_default=sa.text('false'), nullable=False),
    sa.Column('limit_micro_usd', sa.BigInteger(), nullable=False),
    sa.Column('spent_micro_usd', sa.BigInteger(), nullable=False),
    sa.Column('held_micro_usd', sa.BigInteger(), nullable=False),
    sa.Column('refused_micro_usd', sa.BigInteger(), nullable=True),
    sa.Column('period_start', sa.DateTime(timezone=True), nullable=False),
    sa.Column('period_end', sa.DateTime(timezone=True), nullable=True),
    sa.CheckConstraint('least(spent_micro_usd, held_micro_usd) >= 0', name='spending_limits_sums'),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_table('spending_reservations',
    sa.Column('call_uid', sa.Text(), nullable=False),
    sa.Column('dispatch', sa.BigInteger(), autoincrement=False, nullable=False),
    sa.Column('limit_id', sa.Text(), nullable=False),
    sa.Column('amount_micro_usd', sa.BigInteger(), nullable=False),
    sa.ForeignKeyConstraint(['limit_id'], ['spending_limits.id'], ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('call_uid', 'dispatch', 'limit_id')
    )
    op.create_index('spending_reservations_limit', 'spending_reservations', ['limit_id'], unique=False)
    op.execute(_WITHIN)
    op.execute(
        "CREATE TRIGGER within BEFORE UPDATE ON spending_limits FOR EACH ROW EXECUTE FUNCTION spending_stays_within()"
    )


def downgrade() -> None:
    op.drop_index('spending_reservations_limit', table_name='spending_reservations')
    op.drop_table('spending_reservations')
    op.drop_table('spending_limits')
    op.execute("DROP FUNCTION spending_stays_within()")
    op.drop_column('calls', 'reserved_micro_usd')
