"""An error on the wire, as RFC 9457 has it."""

from tuner.schemas.base import Answer


class FieldProblem(Answer):
    """`pointer` is an RFC 6901 JSON pointer into the body, or the name of a query parameter."""

    pointer: str
    detail: str


class Problem(Answer):
    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[FieldProblem] = []
