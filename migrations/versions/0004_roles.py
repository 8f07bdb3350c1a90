"""roles: a key does no more than the role of its owner

Revision: 0004, after 0003.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '0004'
down_revision = '0003'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column('tokens', sa.Column('role', sa.Text(), nullable=True))
    # Until now a key did what its scopes say; under the highest role it still does.
    op.execute("UPDATE tokens SET role = 'Owner' WHERE kind = 'apikey'")
    op.create_check_constraint('tokens_role', 'tokens', "kind <> 'apikey' OR role IS NOT NULL")


def downgrade() -> None:
    op.drop_constraint('tokens_role', 'tokens', type_='check')
    op.drop_column('tokens', 'role')
