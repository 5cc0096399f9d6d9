"""One bearer key for everything under `/v1`."""

import hmac
from typing import Annotated

from fastapi import Depends, HTTPException, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

_scheme = HTTPBearer(auto_error=False, description="the key in $TUNER_HOME/api_key")


async def require_key(
    request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_scheme)]
) -> None:
    """Raises 401. The comparison takes the same time whatever was given."""
    expected: str = request.app.state.api_key
    if given is None or not hmac.compare_digest(given.credentials.encode(), expected.encode()):
        detail = "send the header Authorization: Bearer KEY, with the key from $TUNER_HOME/api_key"
        raise HTTPException(401, detail, headers={"WWW-Authenticate": "Bearer"})
