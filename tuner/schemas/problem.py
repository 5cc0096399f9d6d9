"""Models of errors, following RFC 9457."""

from tuner.schemas.base import Answer


class FieldProblem(Answer):
    """A fault in the request. `pointer` is an RFC 6901 JSON pointer into the body, or the name of a query parameter."""

    pointer: str
    detail: str


class Problem(Answer):
    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[FieldProblem] = []
