"""people by the name that an identity provider has for them, and the projects that bound them

Revision: 0018, after 0017.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = '0018'
down_revision = '0017'
branch_labels = None
depends_on = None

# Members that there are already are known by their addresses.
_LOGINS = """
UPDATE credential_owners c SET login = lower(o.doc -> 'spec' ->> 'email')
FROM objects o WHERE o.kind = 'Member' AND o.uid = c.uid
"""


def upgrade() -> None:
    op.add_column('credential_owners', sa.Column('login', sa.Text(), nullable=True))
    op.add_column('credential_owners', sa.Column('projects', postgresql.ARRAY(sa.Text()), nullable=True))
    op.create_index('credential_owners_login', 'credential_owners', ['login'], unique=False, postgresql_where=sa.text('login IS NOT NULL'))
    op.execute(_LOGINS)


def downgrade() -> None:
    op.drop_index('credential_owners_login', table_name='credential_owners', postgresql_where=sa.text('login IS NOT NULL'))
    op.drop_column('credential_owners', 'projects')
    op.drop_column('credential_owners', 'login')
