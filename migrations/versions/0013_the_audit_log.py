"""the audit log

Revision: 0013, after 0012.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = '0013'
down_revision = '0012'
branch_labels = None
depends_on = None

_REFUSE = """
CREATE FUNCTION audit_refuses() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of % refused: the audit log only grows', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'integrity_constraint_violation';
END $$
"""
_RELEASE = """
CREATE FUNCTION audit_releases() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM audit_checkpoints WHERE last_seq >= OLD.%s) THEN
        RAISE EXCEPTION 'DELETE of %% refused: no checkpoint has released it', TG_TABLE_NAME
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN OLD;
END $$
"""
_TABLES = ('audit_events', 'audit_seals', 'audit_checkpoints')


def upgrade() -> None:
    op.create_table('audit_events',
    sa.Column('seq', sa.BigInteger(), sa.Identity(always=True), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    *(sa.Column(name, sa.Text(), nullable=False) for name in (
        'org', 'project', 'kind', 'name', 'uid', 'subresource', 'verb', 'principal_kind', 'principal', 'key_prefix',
        'request_id', 'source',
    )),
    sa.Column('code', sa.Integer(), nullable=False),
    sa.Column('reason', sa.Text(), nullable=False),
    sa.Column('count', sa.BigInteger(), nullable=False),
    sa.Column('message', sa.Text(), nullable=False),
    sa.CheckConstraint('count >= 1', name='audit_events_count'),
    sa.PrimaryKeyConstraint('seq')
    )
    op.create_index('audit_events_org', 'audit_events', ['org', 'seq'])
    op.create_table('audit_seals',
    sa.Column('number', sa.BigInteger(), autoincrement=False, nullable=False),
    sa.Column('sealed_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('last_seq', sa.BigInteger(), nullable=False),
    sa.Column('events', postgresql.ARRAY(sa.BigInteger()), nullable=False),
    sa.Column('digests', sa.LargeBinary(), nullable=False),
    sa.Column('hash', sa.LargeBinary(), nullable=False),
    sa.CheckConstraint('octet_length(digests) = 32 * cardinality(events) AND octet_length(hash) = 32', name='audit_seals_digests'),
    sa.PrimaryKeyConstraint('number')
    )
    op.create_table('audit_checkpoints',
    sa.Column('seal', sa.BigInteger(), autoincrement=False, nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('last_seq', sa.BigInteger(), nullable=False),
    sa.Column('hash', sa.LargeBinary(), nullable=False),
    sa.PrimaryKeyConstraint('seal')
    )
    op.execute(_REFUSE)
    for table, column in (('audit_events', 'seq'), ('audit_seals', 'last_seq')):
        op.execute((_RELEASE % column).replace('audit_releases', f'{table}_release', 1))
        op.execute(f"CREATE TRIGGER released BEFORE DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION {table}_release()")
    op.execute("CREATE TRIGGER only_grows BEFORE DELETE ON audit_checkpoints FOR EACH ROW EXECUTE FUNCTION audit_refuses()")
    for table in _TABLES:
        op.execute(f"CREATE TRIGGER stays BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION audit_refuses()")
        op.execute(f"CREATE TRIGGER kept BEFORE TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION audit_refuses()")


def downgrade() -> None:
    for table in _TABLES:
        op.drop_table(table)
    for function in ('audit_refuses', 'audit_events_release', 'audit_seals_release'):
        op.execute(f"DROP FUNCTION {function}()")
