"""the ledger

Revision: 0002, after 0001.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '0002'
down_revision = '0001'
branch_labels = None
depends_on = None

# A transfer that is known already enters no second time, and one that contradicts it, or what it refers to, not at all.
_ENTER = """
CREATE FUNCTION ledger_transfer_enters() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    known ledger_transfers;
    referred ledger_transfers;
    refunded bigint;
BEGIN
    SELECT * INTO known FROM ledger_transfers WHERE id = NEW.id;
    IF FOUND THEN
        IF (known.kind, known.org, known.amount_micro_usd, known.refers_to, known.subject_uid)
            IS DISTINCT FROM (NEW.kind, NEW.org, NEW.amount_micro_usd, NEW.refers_to, NEW.subject_uid) THEN
            RAISE EXCEPTION 'transfer % is in the ledger with other contents', NEW.id
                USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        RETURN NULL;
    END IF;
    IF NEW.refers_to IS NULL THEN
        RETURN NEW;
    END IF;
    SELECT * INTO referred FROM ledger_transfers WHERE id = NEW.refers_to;
    IF NOT FOUND OR referred.org <> NEW.org OR NEW.amount_micro_usd > referred.amount_micro_usd THEN
        RAISE EXCEPTION 'transfer % exceeds or does not match %', NEW.id, NEW.refers_to
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF NEW.kind <> 'refund' AND referred.kind <> 'hold' THEN
        RAISE EXCEPTION '% is no hold, so % cannot resolve it', NEW.refers_to, NEW.id
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF NEW.kind = 'refund' THEN
        SELECT COALESCE(sum(amount_micro_usd), 0) INTO refunded
            FROM ledger_transfers WHERE kind = 'refund' AND refers_to = NEW.refers_to;
        IF referred.kind NOT IN ('charge', 'post') OR refunded + NEW.amount_micro_usd > referred.amount_micro_usd THEN
            RAISE EXCEPTION 'refund % is more than is left of %', NEW.id, NEW.refers_to
                USING ERRCODE = 'integrity_constraint_violation';
        END IF;
    END IF;
    RETURN NEW;
END $$
"""

# Once a statement, so that a batch of charges moves the two accounts of an organisation once. A hold must fit what is
# available; a charge is of work that was done, so it may leave an organisation in arrears and is never refused.
_APPLY = """
CREATE FUNCTION ledger_transfers_apply() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    overdrawn text;
BEGIN
    INSERT INTO ledger_accounts (id, org, class)
        SELECT DISTINCT side.account, added.org, split_part(side.account, '/', 1)
        FROM added CROSS JOIN LATERAL (VALUES (added.debit), (added.credit)) AS side(account)
        ORDER BY 1
        ON CONFLICT (id) DO NOTHING;
    UPDATE ledger_accounts a SET
        debits_micro_usd = a.debits_micro_usd + m.debits,
        credits_micro_usd = a.credits_micro_usd + m.credits,
        held_debits_micro_usd = a.held_debits_micro_usd + m.held_debits,
        held_credits_micro_usd = a.held_credits_micro_usd + m.held_credits
    FROM (
        SELECT side.account,
            COALESCE(sum(t.moved) FILTER (WHERE side.is_debit), 0) AS debits,
            COALESCE(sum(t.moved) FILTER (WHERE NOT side.is_debit), 0) AS credits,
            COALESCE(sum(t.held) FILTER (WHERE side.is_debit), 0) AS held_debits,
            COALESCE(sum(t.held) FILTER (WHERE NOT side.is_debit), 0) AS held_credits
        FROM (
            SELECT n.debit, n.credit, CASE WHEN n.kind = 'hold' THEN 0 ELSE n.amount_micro_usd END AS moved,
                CASE WHEN n.kind = 'hold' THEN n.amount_micro_usd ELSE -COALESCE(h.amount_micro_usd, 0) END AS held
            FROM added n LEFT JOIN ledger_transfers h ON n.kind <> 'refund' AND h.id = n.refers_to
        ) AS t CROSS JOIN LATERAL (VALUES (t.debit, true), (t.credit, false)) AS side(account, is_debit)
        GROUP BY side.account
    ) AS m WHERE a.id = m.account;
    IF EXISTS (SELECT FROM added WHERE kind IN ('hold', 'post', 'void', 'expire')) THEN
        INSERT INTO ledger_open_holds (id, expires_at) SELECT id, expires_at FROM added WHERE kind = 'hold';
        DELETE FROM ledger_open_holds o USING added n WHERE o.id = n.refers_to AND n.kind <> 'refund';
        SELECT a.id INTO overdrawn FROM ledger_accounts a
            WHERE a.credits_micro_usd - a.debits_micro_usd - a.held_debits_micro_usd < a.floor_micro_usd
            AND EXISTS (SELECT FROM added n WHERE n.kind = 'hold' AND n.debit = a.id) LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'a hold is more than % has available', overdrawn USING ERRCODE = 'check_violation';
        END IF;
    END IF;
    RETURN NULL;
END $$
"""

_REFUSE = """
CREATE FUNCTION ledger_refuses() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of % refused: the ledger only grows', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'integrity_constraint_violation';
END $$
"""

# At depth 1 the update is somebody's own; the ledger's trigger updates at depth 2. The floor is an operator's to set.
_GUARD = """
CREATE FUNCTION ledger_account_changes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF pg_trigger_depth() < 2 AND (OLD.id, OLD.debits_micro_usd, OLD.credits_micro_usd, OLD.held_debits_micro_usd,
        OLD.held_credits_micro_usd) IS DISTINCT FROM (NEW.id, NEW.debits_micro_usd, NEW.credits_micro_usd,
        NEW.held_debits_micro_usd, NEW.held_credits_micro_usd) THEN
        RAISE EXCEPTION 'the sums of % follow from its transfers', OLD.id
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$
"""

_TRIGGERS = (
    "CREATE TRIGGER enters BEFORE INSERT ON ledger_transfers FOR EACH ROW EXECUTE FUNCTION ledger_transfer_enters()",
    "CREATE TRIGGER apply AFTER INSERT ON ledger_transfers REFERENCING NEW TABLE AS added"
    " FOR EACH STATEMENT EXECUTE FUNCTION ledger_transfers_apply()",
    "CREATE TRIGGER only_grows BEFORE UPDATE OR DELETE ON ledger_transfers"
    " FOR EACH ROW EXECUTE FUNCTION ledger_refuses()",
    "CREATE TRIGGER stays BEFORE TRUNCATE ON ledger_transfers FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuses()",
    "CREATE TRIGGER follows BEFORE UPDATE ON ledger_accounts FOR EACH ROW EXECUTE FUNCTION ledger_account_changes()",
    "CREATE TRIGGER only_grows BEFORE DELETE ON ledger_accounts FOR EACH ROW EXECUTE FUNCTION ledger_refuses()",
    "CREATE TRIGGER stays BEFORE TRUNCATE ON ledger_accounts FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuses()",
)

# What Functions were charged before there was a ledger, so that their totals and the ledger agree from the first day.
_OPENING = """
INSERT INTO ledger_transfers
    (id, org, kind, debit, credit, amount_micro_usd, reason, project, subject_kind, subject_name, subject_uid,
    function_uid, created_at)
SELECT 'opening/' || function_uid, org, 'charge', 'credits/' || org, 'revenue/' || org, charge_micro_usd,
    'charged before the ledger was opened', project, 'Function', function, function_uid, function_uid, now()
FROM function_load WHERE charge_micro_usd > 0
"""

_FUNCTIONS = ("ledger_transfer_enters", "ledger_transfers_apply", "ledger_refuses", "ledger_account_changes")


def upgrade() -> None:
    op.create_table('ledger_accounts',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('org', sa.Text(), nullable=False),
    sa.Column('class', sa.Text(), nullable=False),
    sa.Column('floor_micro_usd', sa.BigInteger(), nullable=True),
    sa.Column('debits_micro_usd', sa.BigInteger(), server_default=sa.text('0'), nullable=False),
    sa.Column('credits_micro_usd', sa.BigInteger(), server_default=sa.text('0'), nullable=False),
    sa.Column('held_debits_micro_usd', sa.BigInteger(), server_default=sa.text('0'), nullable=False),
    sa.Column('held_credits_micro_usd', sa.BigInteger(), server_default=sa.text('0'), nullable=False),
    sa.CheckConstraint("class <> 'revenue' OR credits_micro_usd >= debits_micro_usd", name='ledger_accounts_refunds'),
    sa.CheckConstraint("class IN ('credits', 'grants', 'revenue')", name='ledger_accounts_class'),
    sa.CheckConstraint("id = class || '/' || org", name='ledger_accounts_id'),
    sa.CheckConstraint('least(debits_micro_usd, credits_micro_usd, held_debits_micro_usd, held_credits_micro_usd) >= 0', name='ledger_accounts_sums'),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_table('ledger_open_holds',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('expires_at', sa.DateTime(timezone=True), nullable=False),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_index('ledger_open_holds_expiry', 'ledger_open_holds', ['expires_at'], unique=False)
    op.create_table('ledger_transfers',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('seq', sa.BigInteger(), sa.Identity(always=True), nullable=False),
    sa.Column('org', sa.Text(), nullable=False),
    sa.Column('kind', sa.Text(), nullable=False),
    sa.Column('debit', sa.Text(), nullable=False),
    sa.Column('credit', sa.Text(), nullable=False),
    sa.Column('amount_micro_usd', sa.BigInteger(), nullable=False),
    sa.Column('refers_to', sa.Text(), nullable=True),
    sa.Column('expires_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('reason', sa.Text(), nullable=False),
    sa.Column('project', sa.Text(), nullable=True),
    sa.Column('subject_kind', sa.Text(), nullable=True),
    sa.Column('subject_name', sa.Text(), nullable=True),
    sa.Column('subject_uid', sa.Text(), nullable=True),
    sa.Column('function_uid', sa.Text(), nullable=True),
    sa.Column('dispatch', sa.BigInteger(), nullable=True),
    sa.Column('period_start', sa.DateTime(timezone=True), nullable=True),
    sa.Column('period_end', sa.DateTime(timezone=True), nullable=True),
    sa.Column('rate_micro_usd_per_hour', sa.BigInteger(), nullable=True),
    sa.Column('shares', sa.SmallInteger(), nullable=True),
    sa.Column('pricebook', sa.Text(), nullable=True),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.CheckConstraint("(expires_at IS NOT NULL) = (kind = 'hold')", name='ledger_transfers_expiry'),
    sa.CheckConstraint("(refers_to IS NOT NULL) = (kind IN ('refund', 'post', 'void', 'expire'))", name='ledger_transfers_refers'),
    sa.CheckConstraint("amount_micro_usd >= 0 AND (amount_micro_usd = 0) = (kind IN ('void', 'expire'))", name='ledger_transfers_amount'),
    sa.CheckConstraint("debit = CASE kind WHEN 'grant' THEN 'grants' WHEN 'refund' THEN 'revenue' ELSE 'credits' END || '/' || org AND credit = CASE WHEN kind IN ('grant', 'refund') THEN 'credits' ELSE 'revenue' END || '/' || org", name='ledger_transfers_sides'),
    sa.CheckConstraint("kind IN ('charge', 'grant', 'refund', 'hold', 'post', 'void', 'expire')", name='ledger_transfers_kind'),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_index('ledger_transfers_function', 'ledger_transfers', ['function_uid'], unique=False, postgresql_where=sa.text('function_uid IS NOT NULL'))
    op.create_index('ledger_transfers_refunded', 'ledger_transfers', ['refers_to'], unique=False, postgresql_where=sa.text("kind = 'refund'"))
    op.create_index('ledger_transfers_resolved', 'ledger_transfers', ['refers_to'], unique=True, postgresql_where=sa.text("kind IN ('post', 'void', 'expire')"))
    op.create_index('ledger_transfers_seq', 'ledger_transfers', ['seq'], unique=True)
    op.create_index('ledger_transfers_subject', 'ledger_transfers', ['subject_uid'], unique=False, postgresql_where=sa.text('subject_uid IS NOT NULL'))
    for statement in (_ENTER, _APPLY, _REFUSE, _GUARD, *_TRIGGERS, _OPENING):
        op.execute(statement)


def downgrade() -> None:
    op.drop_index('ledger_transfers_subject', table_name='ledger_transfers', postgresql_where=sa.text('subject_uid IS NOT NULL'))
    op.drop_index('ledger_transfers_seq', table_name='ledger_transfers')
    op.drop_index('ledger_transfers_resolved', table_name='ledger_transfers', postgresql_where=sa.text("kind IN ('post', 'void', 'expire')"))
    op.drop_index('ledger_transfers_refunded', table_name='ledger_transfers', postgresql_where=sa.text("kind = 'refund'"))
    op.drop_index('ledger_transfers_function', table_name='ledger_transfers', postgresql_where=sa.text('function_uid IS NOT NULL'))
    op.drop_table('ledger_transfers')
    op.drop_index('ledger_open_holds_expiry', table_name='ledger_open_holds')
    op.drop_table('ledger_open_holds')
    op.drop_table('ledger_accounts')
    for name in _FUNCTIONS:
        op.execute(f"DROP FUNCTION {name}()")
