"""The table of kinds: everything that is served is a row of `KINDS`.

Routes, discovery, OpenAPI, tables, selectors, admission and scopes are derived from the rows. To add a kind, write its
module beside this one and add it here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from controlplane.kinds.api_key import API_KEY
from controlplane.kinds.app import APP
from controlplane.kinds.attempt import ATTEMPT
from controlplane.kinds.audit_event import AUDIT_EVENT
from controlplane.kinds.billing_account import BILLING_ACCOUNT, TOP_UP
from controlplane.kinds.budget import BUDGET
from controlplane.kinds.credit_grant import CREDIT_GRANT
from controlplane.kinds.event import EVENT
from controlplane.kinds.function import FUNCTION
from controlplane.kinds.function_call import FUNCTION_CALL
from controlplane.kinds.image import IMAGE
from controlplane.kinds.invite import INVITE
from controlplane.kinds.member import MEMBER
from controlplane.kinds.offering import OFFERING
from controlplane.kinds.organization import ORGANIZATION
from controlplane.kinds.project import PROJECT
from controlplane.kinds.quota import QUOTA
from controlplane.kinds.secret import SECRET
from controlplane.kinds.service_account import SERVICE_ACCOUNT
from controlplane.kinds.ssh_key import SSH_KEY
from controlplane.kinds.transaction import TRANSACTION
from controlplane.kinds.usage_record import USAGE_RECORD
from controlplane.machinery.kind import Kind

_ROWS = (
    APP,
    FUNCTION,
    FUNCTION_CALL,
    ATTEMPT,
    IMAGE,
    SECRET,
    PROJECT,
    EVENT,
    OFFERING,
    ORGANIZATION,
    MEMBER,
    INVITE,
    API_KEY,
    SERVICE_ACCOUNT,
    SSH_KEY,
    QUOTA,
    BILLING_ACCOUNT,
    BUDGET,
    CREDIT_GRANT,
    TOP_UP,
    TRANSACTION,
    USAGE_RECORD,
    AUDIT_EVENT,
)

KINDS: Mapping[str, Kind] = MappingProxyType({kind.kind: kind for kind in _ROWS})
"""Every kind by its name (`FunctionCall`)."""

BY_PLURAL: Mapping[str, Kind] = MappingProxyType({kind.plural: kind for kind in _ROWS})
"""Every kind by the word in its path (`functioncalls`)."""
