"""the first tables

Revision: 0001, after .
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql
revision = '0001'
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('attempts',
    sa.Column('uid', sa.Text(), nullable=False),
    sa.Column('org', sa.Text(), nullable=False),
    sa.Column('project', sa.Text(), nullable=False),
    sa.Column('function', sa.Text(), nullable=False),
    sa.Column('function_uid', sa.Text(), nullable=False),
    sa.Column('slot', sa.Text(), nullable=False),
    sa.Column('epoch', sa.BigInteger(), nullable=False),
    sa.Column('pool', sa.Text(), nullable=False),
    sa.Column('state', sa.Text(), nullable=False),
    sa.Column('draining', sa.Boolean(), server_default=sa.text('false'), nullable=False),
    sa.Column('drain_reason', sa.Text(), nullable=True),
    sa.Column('has_workflow', sa.Boolean(), server_default=sa.text('false'), nullable=False),
    sa.Column('concurrency', sa.SmallInteger(), nullable=False),
    sa.Column('node', sa.Text(), nullable=True),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('ready_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('last_claim_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('last_busy_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('claim_seq', sa.BigInteger(), server_default=sa.text('0'), nullable=False),
    sa.Column('drained_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('kill_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('finished_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('reason', sa.Text(), nullable=True),
    sa.Column('message', sa.Text(), nullable=True),
    sa.PrimaryKeyConstraint('uid')
    )
    op.create_index('attempts_ended', 'attempts', ['finished_at'], unique=False, postgresql_where=sa.text("state = 'finished'"))
    op.create_index('attempts_history', 'attempts', ['function_uid', 'created_at'], unique=False)
    op.create_index('attempts_lease', 'attempts', ['last_claim_at'], unique=False, postgresql_where=sa.text("state = 'ready'"))
    op.create_index('attempts_live', 'attempts', ['function_uid', 'state'], unique=False, postgresql_where=sa.text("state <> 'finished'"))
    op.create_table('attempt_secrets',
    sa.Column('attempt', sa.Text(), nullable=False),
    sa.Column('secret_uid', sa.Text(), nullable=False),
    sa.Column('version', sa.BigInteger(), autoincrement=False, nullable=False),
    sa.ForeignKeyConstraint(['attempt'], ['attempts.uid'], ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('attempt', 'secret_uid', 'version')
    )
    op.create_index('attempt_secrets_version', 'attempt_secrets', ['secret_uid', 'version'], unique=False)
    op.create_table('blobs',
    sa.Column('org', sa.Text(), nullable=False),
    sa.Column('project', sa.Text(), nullable=False),
    sa.Column('digest', sa.Text(), nullable=False),
    sa.Column('size_bytes', sa.BigInteger(), nullable=False),
    sa.Column('content_type', sa.Text(), nullable=False),
    sa.Column('location', sa.Text(), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('last_used_at', sa.DateTime(timezone=True), nullable=False),
    sa.PrimaryKeyConstraint('org', 'project', 'digest')
    )
    op.create_index('blobs_idle', 'blobs', ['last_used_at'], unique=False)
    op.create_table('call_dispatches',
    sa.Column('call_uid', sa.Text(), nullable=False),
    sa.Column('number', sa.BigInteger(), autoincrement=False, nullable=False),
    sa.Column('org', sa.Text(), nullable=False),
    sa.Column('project', sa.Text(), nullable=False),
    sa.Column('attempt', sa.Text(), nullable=False),
    sa.Column('epoch', sa.BigInteger(), nullable=False),
    sa.Column('call_created_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('started_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('cancel_requested_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('ended_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('cause', sa.Text(), nullable=False),
    sa.Column('reported', sa.Boolean(), server_default=sa.text('false'), nullable=False),
    sa.Column('told', sa.Text(), nullable=False),
    sa.Column('charge_micro_usd', sa.BigInteger(), nullable=False),
    sa.Column('decision', sa.Text(), nullable=False),
    sa.Column('delay_seconds', sa.Float(), nullable=True),
    sa.Column('applied_at', sa.DateTime(timezone=True), nullable=True),
    sa.PrimaryKeyConstraint('call_uid', 'number')
    )
    op.create_table('call_sessions',
    sa.Column('function_uid', sa.Text(), nullable=False),
    sa.Column('session', sa.Text(), nullable=False),
    sa.Column('last_turn', sa.BigInteger(), nullable=False),
    sa.PrimaryKeyConstraint('function_uid', 'session')
    )
    op.create_index('call_sessions_turn', 'call_sessions', ['function_uid', 'last_turn'], unique=False)
    op.create_table('calls',
    sa.Column('uid', sa.Text(), nullable=False),
    sa.Column('org', sa.Text(), nullable=False),
    sa.Column('project', sa.Text(), nullable=False),
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('function', sa.Text(), nullable=False),
    sa.Column('function_uid', sa.Text(), nullable=False),
    sa.Column('session', sa.Text(), nullable=False),
    sa.Column('state', sa.Text(), nullable=False),
    sa.Column('priority', sa.SmallInteger(), nullable=False),
    sa.Column('seq', sa.BigInteger(), nullable=False),
    sa.Column('attempt', sa.Text(), nullable=True),
    sa.Column('epoch', sa.BigInteger(), nullable=True),
    sa.Column('concurrency', sa.SmallInteger(), nullable=True),
    sa.Column('started_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('deadline', sa.DateTime(timezone=True), nullable=True),
    sa.Column('dispatches', sa.BigInteger(), nullable=False),
    sa.Column('retries', sa.SmallInteger(), nullable=False),
    sa.Column('recoveries', sa.SmallInteger(), nullable=False),
    sa.Column('suspect', sa.Boolean(), server_default=sa.text('false'), nullable=False),
    sa.Column('excused', sa.Boolean(), server_default=sa.text('false'), nullable=False),
    sa.Column('charge_micro_usd', sa.BigInteger(), nullable=False),
    sa.Column('cancel_requested_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('let_go_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('outcome', postgresql.JSONB(astext_type=sa.Text()), nullable=True),
    sa.Column('has_workflow', sa.Boolean(), server_default=sa.text('false'), nullable=False),
    sa.Column('task_token', sa.LargeBinary(), nullable=True),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('updated_at', sa.DateTime(timezone=True), nullable=False),
    sa.PrimaryKeyConstraint('uid')
    )
    op.create_index('calls_attempt', 'calls', ['attempt'], unique=False, postgresql_where=sa.text("state = 'running'"))
    op.create_index('calls_cancelling', 'calls', ['cancel_requested_at'], unique=False, postgresql_where=sa.text("state = 'running' AND cancel_requested_at IS NOT NULL"))
    op.create_index('calls_deadline', 'calls', ['deadline'], unique=False, postgresql_where=sa.text("state = 'running'"))
    op.create_index('calls_held', 'calls', ['function_uid'], unique=False, postgresql_where=sa.text("state IN ('running', 'deciding', 'waiting')"))
    op.create_index('calls_silent', 'calls', ['updated_at', 'uid'], unique=False, postgresql_where=sa.text("state IN ('deciding', 'waiting', 'done') AND has_workflow AND task_token IS NULL"))
    op.create_index('calls_queued', 'calls', ['function_uid', 'session', 'priority', 'seq'], unique=False, postgresql_where=sa.text("state = 'queued' AND seq >= 0"))
    op.create_index('calls_queued_started', 'calls', ['function_uid', 'session', 'priority', 'seq'], unique=False, postgresql_where=sa.text("state = 'queued' AND has_workflow"))
    op.create_index('calls_reporting', 'calls', ['state', 'seq'], unique=False, postgresql_where=sa.text("state IN ('deciding', 'done') AND task_token IS NOT NULL"))
    op.create_index('calls_starting', 'calls', ['seq'], unique=False, postgresql_where=sa.text('NOT has_workflow AND seq >= 0'))
    op.create_index('calls_undecided', 'calls', ['seq'], unique=False, postgresql_where=sa.text("NOT has_workflow AND state IN ('deciding', 'waiting')"))
    op.create_index('calls_starting_fairly', 'calls', ['org', 'project', 'session', 'seq'], unique=False, postgresql_where=sa.text('NOT has_workflow AND priority >= 0'))
    # Rows of these tables change several times a second for as long as they live; vacuum must keep pace.
    op.execute("ALTER TABLE calls SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02)")
    op.execute("ALTER TABLE call_sessions SET (autovacuum_vacuum_scale_factor = 0.02)")
    op.create_table('changes',
    sa.Column('rv', sa.BigInteger(), autoincrement=False, nullable=False),
    sa.Column('time', sa.DateTime(timezone=True), nullable=False),
    sa.Column('type', sa.Text(), nullable=False),
    sa.Column('kind', sa.Text(collation='C'), nullable=False),
    sa.Column('org', sa.Text(collation='C'), nullable=False),
    sa.Column('project', sa.Text(collation='C'), nullable=False),
    sa.Column('name', sa.Text(collation='C'), nullable=False),
    sa.Column('uid', sa.Text(), nullable=False),
    sa.Column('prev_rv', sa.BigInteger(), nullable=True),
    sa.Column('labels', postgresql.JSONB(astext_type=sa.Text()), nullable=False),
    sa.Column('fields', postgresql.JSONB(astext_type=sa.Text()), nullable=False),
    sa.Column('prev_labels', postgresql.JSONB(astext_type=sa.Text()), nullable=True),
    sa.Column('prev_fields', postgresql.JSONB(astext_type=sa.Text()), nullable=True),
    sa.Column('doc', sa.JSON(), nullable=False),
    sa.PrimaryKeyConstraint('rv')
    )
    op.create_index('changes_ended_calls', 'changes', ['time', 'rv'], unique=False, postgresql_where=sa.text("kind = 'FunctionCall' AND fields ->> 'status.phase' IN ('Succeeded', 'Failed', 'Cancelled')"))
    op.create_index('changes_events', 'changes', ['time', 'rv'], unique=False, postgresql_where=sa.text("kind = 'Event'"))
    op.create_index('changes_object', 'changes', ['kind', 'org', 'project', 'name', 'rv'], unique=False)
    op.create_table('compaction',
    sa.Column('id', sa.SmallInteger(), autoincrement=False, nullable=False),
    sa.Column('compacted_rv', sa.BigInteger(), nullable=False),
    sa.Column('pruned_rv', sa.BigInteger(), nullable=False),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_table('engine',
    sa.Column('id', sa.SmallInteger(), autoincrement=False, nullable=False),
    sa.Column('incarnation', sa.Text(), nullable=False),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_table('function_load',
    sa.Column('function_uid', sa.Text(), nullable=False),
    sa.Column('org', sa.Text(), nullable=False),
    sa.Column('project', sa.Text(), nullable=False),
    sa.Column('function', sa.Text(), nullable=False),
    sa.Column('queued', sa.BigInteger(), nullable=False),
    sa.Column('running', sa.BigInteger(), nullable=False),
    sa.Column('alone', sa.BigInteger(), nullable=False),
    sa.Column('pending', sa.BigInteger(), nullable=False),
    sa.Column('charge_micro_usd', sa.BigInteger(), nullable=False),
    sa.Column('last_end_at', sa.DateTime(timezone=True), nullable=True),
    sa.PrimaryKeyConstraint('function_uid')
    )
    op.create_table('idempotency',
    sa.Column('scope', sa.Text(), nullable=False),
    sa.Column('key', sa.Text(), nullable=False),
    sa.Column('digest', sa.Text(), nullable=False),
    sa.Column('status', sa.SmallInteger(), nullable=False),
    sa.Column('body', sa.Text(), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.PrimaryKeyConstraint('scope', 'key')
    )
    op.create_index('idempotency_created', 'idempotency', ['created_at'], unique=False)
    op.create_table('log_chunks',
    sa.Column('attempt', sa.Text(), nullable=False),
    sa.Column('seq', sa.BigInteger(), autoincrement=False, nullable=False),
    sa.Column('org', sa.Text(), nullable=False),
    sa.Column('project', sa.Text(), nullable=False),
    sa.Column('function_uid', sa.Text(), nullable=False),
    sa.Column('first_time', sa.DateTime(timezone=True), nullable=False),
    sa.Column('last_time', sa.DateTime(timezone=True), nullable=False),
    sa.Column('received_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('size_bytes', sa.BigInteger(), nullable=False),
    sa.Column('end_bytes', sa.BigInteger(), nullable=False),
    sa.Column('lines', sa.JSON(), nullable=False),
    sa.PrimaryKeyConstraint('attempt', 'seq')
    )
    op.create_index('log_chunks_function', 'log_chunks', ['function_uid', 'received_at'], unique=False)
    op.create_index('log_chunks_time', 'log_chunks', ['received_at'], unique=False)
    op.create_table('meta',
    sa.Column('id', sa.SmallInteger(), autoincrement=False, nullable=False),
    sa.Column('rv', sa.BigInteger(), nullable=False),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_table('objects',
    sa.Column('kind', sa.Text(collation='C'), nullable=False),
    sa.Column('org', sa.Text(collation='C'), nullable=False),
    sa.Column('project', sa.Text(collation='C'), nullable=False),
    sa.Column('name', sa.Text(collation='C'), nullable=False),
    sa.Column('uid', sa.Text(), nullable=False),
    sa.Column('rv', sa.BigInteger(), nullable=False),
    sa.Column('create_rv', sa.BigInteger(), nullable=False),
    sa.Column('deleting', sa.Boolean(), server_default=sa.text('false'), nullable=False),
    sa.Column('labels', postgresql.JSONB(astext_type=sa.Text()), nullable=False),
    sa.Column('fields', postgresql.JSONB(astext_type=sa.Text()), nullable=False),
    sa.Column('owners', postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False),
    sa.Column('doc', sa.JSON(), nullable=False),
    sa.PrimaryKeyConstraint('kind', 'org', 'project', 'name'),
    sa.UniqueConstraint('uid')
    )
    op.create_index('objects_by_function', 'objects', ['kind', 'org', sa.text("(labels ->> 'nodus.dev/function')"), 'project', 'name'], unique=False, postgresql_where=sa.text("(labels ->> 'nodus.dev/function') IS NOT NULL"))
    op.create_index('objects_by_map', 'objects', ['kind', 'org', sa.text("(labels ->> 'nodus.dev/map')"), 'project', 'name'], unique=False, postgresql_where=sa.text("(labels ->> 'nodus.dev/map') IS NOT NULL"))
    op.create_index('objects_by_phase', 'objects', ['kind', 'org', sa.text("(fields ->> 'status.phase')"), 'project', 'name'], unique=False, postgresql_where=sa.text("(fields ->> 'status.phase') IS NOT NULL"))
    op.create_index('objects_deleting', 'objects', ['kind'], unique=False, postgresql_where=sa.text('deleting'))
    op.create_index('objects_fields', 'objects', ['fields'], unique=False, postgresql_using='gin', postgresql_ops={'fields': 'jsonb_path_ops'})
    op.create_index('objects_labels', 'objects', ['labels'], unique=False, postgresql_using='gin', postgresql_ops={'labels': 'jsonb_path_ops'})
    op.create_index('objects_owners', 'objects', ['owners'], unique=False, postgresql_using='gin', postgresql_where=sa.text("owners <> '{}'"))
    op.create_table('secret_versions',
    sa.Column('secret_uid', sa.Text(), nullable=False),
    sa.Column('version', sa.BigInteger(), autoincrement=False, nullable=False),
    sa.Column('org', sa.Text(), nullable=False),
    sa.Column('project', sa.Text(), nullable=False),
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('digest', sa.Text(), nullable=False),
    sa.Column('ciphertext', sa.LargeBinary(), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.PrimaryKeyConstraint('secret_uid', 'version')
    )
    op.create_table('tokens',
    sa.Column('hash', sa.LargeBinary(), nullable=False),
    sa.Column('kind', sa.Text(), nullable=False),
    sa.Column('org', sa.Text(), nullable=False),
    sa.Column('principal', sa.Text(), nullable=False),
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('project', sa.Text(), nullable=True),
    sa.Column('function', sa.Text(), nullable=True),
    sa.Column('function_uid', sa.Text(), nullable=True),
    sa.Column('attempt', sa.Text(), nullable=True),
    sa.Column('epoch', sa.BigInteger(), nullable=True),
    sa.Column('scopes', postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False),
    sa.Column('projects', postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('expires_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('revoked_at', sa.DateTime(timezone=True), nullable=True),
    sa.PrimaryKeyConstraint('hash')
    )
    op.create_index('tokens_attempt', 'tokens', ['attempt'], unique=False, postgresql_where=sa.text('attempt IS NOT NULL'))
    op.execute("INSERT INTO meta (id, rv) VALUES (1, 0)")
    op.execute("INSERT INTO compaction (id, compacted_rv, pruned_rv) VALUES (1, 0, 0)")


def downgrade() -> None:
    op.drop_index('tokens_attempt', table_name='tokens', postgresql_where=sa.text('attempt IS NOT NULL'))
    op.drop_table('tokens')
    op.drop_table('secret_versions')
    op.drop_index('objects_owners', table_name='objects', postgresql_using='gin', postgresql_where=sa.text("owners <> '{}'"))
    op.drop_index('objects_labels', table_name='objects', postgresql_using='gin', postgresql_ops={'labels': 'jsonb_path_ops'})
    op.drop_index('objects_fields', table_name='objects', postgresql_using='gin', postgresql_ops={'fields': 'jsonb_path_ops'})
    op.drop_index('objects_deleting', table_name='objects', postgresql_where=sa.text('deleting'))
    op.drop_index('objects_by_phase', table_name='objects', postgresql_where=sa.text("(fields ->> 'status.phase') IS NOT NULL"))
    op.drop_index('objects_by_map', table_name='objects', postgresql_where=sa.text("(labels ->> 'nodus.dev/map') IS NOT NULL"))
    op.drop_index('objects_by_function', table_name='objects', postgresql_where=sa.text("(labels ->> 'nodus.dev/function') IS NOT NULL"))
    op.drop_table('objects')
    op.drop_table('meta')
    op.drop_index('log_chunks_time', table_name='log_chunks')
    op.drop_index('log_chunks_function', table_name='log_chunks')
    op.drop_table('log_chunks')
    op.drop_index('idempotency_created', table_name='idempotency')
    op.drop_table('idempotency')
    op.drop_table('function_load')
    op.drop_table('engine')
    op.drop_table('compaction')
    op.drop_index('changes_object', table_name='changes')
    op.drop_index('changes_events', table_name='changes')
    op.drop_index('changes_ended_calls', table_name='changes')
    op.drop_table('changes')
    op.drop_table('calls')
    op.drop_index('call_sessions_turn', table_name='call_sessions')
    op.drop_table('call_sessions')
    op.drop_table('call_dispatches')
    op.drop_index('blobs_idle', table_name='blobs')
    op.drop_table('blobs')
    op.drop_index('attempt_secrets_version', table_name='attempt_secrets')
    op.drop_table('attempt_secrets')
    op.drop_index('attempts_live', table_name='attempts', postgresql_where=sa.text("state <> 'finished'"))
    op.drop_index('attempts_lease', table_name='attempts', postgresql_where=sa.text("state = 'ready'"))
    op.drop_index('attempts_history', table_name='attempts')
    op.drop_index('attempts_ended', table_name='attempts', postgresql_where=sa.text("state = 'finished'"))
    op.drop_table('attempts')
