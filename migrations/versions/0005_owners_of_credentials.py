"""owners of credentials: members and service accounts bound what their keys may do, also keys that were made before

Revision: 0005, after 0004.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = '0005'
down_revision = '0004'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('credential_owners',
    sa.Column('uid', sa.Text(), nullable=False),
    sa.Column('org', sa.Text(), nullable=False),
    sa.Column('kind', sa.Text(), nullable=False),
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('user_uuid', sa.Text(), nullable=True),
    sa.Column('role', sa.Text(), nullable=True),
    sa.Column('scopes', postgresql.ARRAY(sa.Text()), nullable=True),
    sa.CheckConstraint('(role IS NULL) <> (scopes IS NULL)', name='credential_owners_bound'),
    sa.PrimaryKeyConstraint('uid')
    )
    op.create_index('credential_owners_org', 'credential_owners', ['org', 'role'], unique=False)
    op.add_column('tokens', sa.Column('owner', sa.Text(), nullable=True))
    op.add_column('tokens', sa.Column('uid', sa.Text(), nullable=True))
    op.add_column('tokens', sa.Column('last_used_at', sa.DateTime(timezone=True), nullable=True))
    op.add_column('tokens', sa.Column('shown_used_at', sa.DateTime(timezone=True), nullable=True))
    op.create_index('tokens_owner', 'tokens', ['owner'], unique=False, postgresql_where=sa.text('owner IS NOT NULL'))
    op.create_index('tokens_uid', 'tokens', ['uid'], unique=True, postgresql_where=sa.text('uid IS NOT NULL'))
    op.drop_constraint('tokens_role', 'tokens', type_='check')
    op.create_check_constraint('tokens_role', 'tokens', "kind <> 'apikey' OR role IS NOT NULL OR owner IS NOT NULL")


def downgrade() -> None:
    op.execute("UPDATE tokens t SET role = o.role FROM credential_owners o WHERE o.uid = t.owner AND o.role IS NOT NULL")
    op.execute("DELETE FROM tokens WHERE kind = 'apikey' AND role IS NULL")
    op.drop_constraint('tokens_role', 'tokens', type_='check')
    op.create_check_constraint('tokens_role', 'tokens', "kind <> 'apikey' OR role IS NOT NULL")
    op.drop_index('tokens_uid', table_name='tokens', postgresql_where=sa.text('uid IS NOT NULL'))
    op.drop_index('tokens_owner', table_name='tokens', postgresql_where=sa.text('owner IS NOT NULL'))
    for column in ('shown_used_at', 'last_used_at', 'uid', 'owner'):
        op.drop_column('tokens', column)
    op.drop_table('credential_owners')
