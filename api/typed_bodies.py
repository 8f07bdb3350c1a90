"""Small JSON bodies beside the objects: an upload, a lease, a batch of log lines."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from pydantic import ValidationError
from starlette.requests import Request

from api.bodies import read_body
from controlplane.errors import ApiError, Reason
from controlplane.machinery.model import ApiModel
from controlplane.machinery.validation import causes_of, decode_json, decode_object

Body = TypeVar("Body", bound=ApiModel)


async def read_typed(request: Request, model: type[Body], bytes_max: int) -> Body:
    """The body as `model`: BadRequest when it is no JSON object, Invalid with a cause for each wrong field."""
    return typed(await read_body(request, bytes_max), model)


def typed(content: bytes, model: type[Body]) -> Body:
    """The same for a body that was read already."""
    value = decode_object(decode_json(content))
    try:
        return model.model_validate(value)
    except ValidationError as error:
        # The path of a field of the body itself has nothing before its first dot.
        causes = tuple(replace(cause, field=cause.field.lstrip(".")) for cause in causes_of(error, "", model))
        told = "; ".join(f"{cause.field}: {cause.message}" for cause in causes)
        raise ApiError(Reason.INVALID, f"the body is invalid: {told}", causes=causes) from None
