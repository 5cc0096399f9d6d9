"""The page: static files that speak REST and server-sent events like any other client."""

from pathlib import Path

FOLDER = Path(__file__).parent / "static"
