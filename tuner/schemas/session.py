"""Model of a browser's session with the dashboards."""

from pydantic import BaseModel


class Session(BaseModel):
    expires_at: str
