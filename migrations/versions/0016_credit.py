"""credit: what workers reserve of limits of spending, and grants of credit that expire

Revision: 0016, after 0015.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '0016'
down_revision = '0015'
branch_labels = None
depends_on = None

_TABLE = 'ledger_transfers'
_KIND = "kind IN ('charge', 'grant', 'refund', 'hold', 'post', 'void', 'expire'{more})"
_SIDES = (
    "debit = CASE kind WHEN 'grant' THEN 'grants' WHEN 'refund' THEN 'revenue' ELSE 'credits' END || '/' || org AND "
    "credit = CASE {more}WHEN kind IN ('grant', 'refund') THEN 'credits' ELSE 'revenue' END || '/' || org"
)
_BEFORE = {
    'ledger_transfers_kind': _KIND.format(more=""),
    'ledger_transfers_sides': _SIDES.format(more=""),
    'ledger_transfers_expiry': "(expires_at IS NOT NULL) = (kind = 'hold')",
}
_AFTER = {
    'ledger_transfers_kind': _KIND.format(more=", 'lapse'"),
    'ledger_transfers_sides': _SIDES.format(more="WHEN kind = 'lapse' THEN 'grants' "),
    'ledger_transfers_expiry': "CASE kind WHEN 'hold' THEN expires_at IS NOT NULL WHEN 'grant' THEN true "
    "ELSE expires_at IS NULL END",
}

# Whatever the code believes, no more lapses than was granted, and nothing before its time. It comes after the trigger that
# drops repetitions: triggers of a table go by their names.
_LAPSES = """
CREATE FUNCTION ledger_grant_lapses() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    granted bigint;
    lapsed bigint;
BEGIN
    SELECT amount_micro_usd INTO granted FROM ledger_transfers
        WHERE id = NEW.subject_uid AND kind = 'grant' AND org = NEW.org AND expires_at <= NEW.created_at;
    SELECT COALESCE(sum(amount_micro_usd), 0) INTO lapsed
        FROM ledger_transfers WHERE kind = 'lapse' AND subject_uid = NEW.subject_uid;
    IF granted IS NULL OR lapsed + NEW.amount_micro_usd > granted THEN
        RAISE EXCEPTION 'lapse % is more than has expired of %', NEW.id, NEW.subject_uid
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$
"""


def upgrade() -> None:
    op.add_column(
        'worker_accounts', sa.Column('reserved_micro_usd', sa.BigInteger(), server_default=sa.text('0'), nullable=False)
    )
    _constrain(_AFTER)
    op.create_index(
        'ledger_transfers_grants', _TABLE, ['org', 'seq'], unique=False,
        postgresql_where=sa.text("kind IN ('grant', 'lapse')"),
    )
    op.execute(_LAPSES)
    op.execute(
        "CREATE TRIGGER lapses BEFORE INSERT ON ledger_transfers FOR EACH ROW WHEN (NEW.kind = 'lapse')"
        " EXECUTE FUNCTION ledger_grant_lapses()"
    )


def downgrade() -> None:
    op.execute("DROP TRIGGER lapses ON ledger_transfers")
    op.execute("DROP FUNCTION ledger_grant_lapses()")
    op.drop_index('ledger_transfers_grants', table_name=_TABLE)
    _constrain(_BEFORE)
    op.drop_column('worker_accounts', 'reserved_micro_usd')


def _constrain(checks: dict[str, str]) -> None:
    for name, check in checks.items():
        op.drop_constraint(name, _TABLE, type_='check')
        op.create_check_constraint(name, _TABLE, check)
