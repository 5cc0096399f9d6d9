"""Follow the states of an attempt from the order to save them until the driver has recorded their checkpoints.

The supervisor's lock guards this state. The module does no I/O.
"""

from dataclasses import dataclass, field

from tuner.checkpoints.checkpoints import Published
from tuner.training.channel import Reply
from tuner.worker.child_channel import InvalidMessage, SavedMessage, check_saved_step
from tuner.worker.orders import PartFields, SavedFields

# How many announced checkpoints may wait to be stored. The supervisor orders a save only after the previous one was stored, so only user
# code that saves without an order reaches this limit.
MAX_UNPUBLISHED = 4
# Which state a checkpoint holds: the last finished step, and the number of the save in the middle of the next step. The number is 0 if the
# checkpoint was saved between two steps. A higher position is newer.
Position = tuple[int, int]


@dataclass
class SavedStates:
    """The saves of one attempt."""

    durable: int = 0  # the newest step whose checkpoint is in shared storage
    recorded: int = 0  # the newest durable step that the driver has recorded
    is_saving: bool = False  # whether a checkpoint is being written or stored
    written: Position = (0, 0)  # the newest state of which the child has written a checkpoint
    ordered: Position = (0, 0)  # the newest state that the child was ordered to save at once
    closing: bool = False  # whether the child was ordered to stop, or user code has returned
    # whether user code has returned, so that the attempt ends once all announced checkpoints are stored
    ends_by_itself: bool = False
    # for each ordered save in the middle of a step: the attempt's training time until the save, and `PartOfStep.trained_ns`
    parts: list[tuple[int, int]] = field(default_factory=list)
    _announced: int = 0  # `durable` when the last result was returned
    _unpublished: int = 0  # checkpoints that the child announced and the publisher has not finished
    # the state that the attempt's last checkpoint must hold; zeros without such a checkpoint
    _closes_with: Position = (0, 0)
    _checkpoints: list[SavedFields] = field(default_factory=list)  # to be sent with the next result
    # the newest stored checkpoint from the middle of a step, to be sent with the next result
    _stored_part: PartFields | None = None

    def restored_from(self, step: int) -> None:
        """Record that the attempt continues from the checkpoint of `step`."""
        self.durable = self._announced = self.recorded = step

    def answered(self, position: Position, reply: Reply, kept_step: int | None) -> None:
        """Note a reply to the child, which is in the state `position` and keeps a copy of the state of `kept_step` in memory."""
        self.is_saving = self.is_saving or reply.save or reply.flush
        self.closing = reply.stop
        if reply.stop:
            self._closes_with = position if reply.save else (kept_step or 0, 0)
            # only a checkpoint that the child announces after this reply may end the attempt
            self.written = (0, 0)
        if reply.save:
            self.ordered = position

    def returned(self) -> bool:
        """Record that user code has returned. Return whether announced checkpoints are still to be stored before the attempt ends."""
        self.ends_by_itself = self.closing = self._unpublished > 0
        return self.ends_by_itself

    def closed_by(self, position: Position) -> bool:
        """Return whether a stored checkpoint of the state `position` ends the attempt.

        It does if the child was ordered to stop and the state is at least as new as the one that it must save. If user code has
        returned, the checkpoint that is stored last ends the attempt.
        """
        if self.ends_by_itself:
            return not self._unpublished
        return self.closing and position >= self._closes_with

    @property
    def last_is_written(self) -> bool:
        """Whether the child has written the checkpoint that ends the attempt once it is stored."""
        return self.ends_by_itself or self.closed_by(self.written)

    def note_written(self, message: SavedMessage, *, last_step: int) -> None:
        """Record that the child wrote a checkpoint, which the publisher will store. `last_step` is the newest reported step.

        Raises:
            InvalidMessage: The child cannot have a checkpoint of that step, or it announces checkpoints
                faster than they are stored.
        """
        check_saved_step(message.step, last_step=last_step, part=message.part, parts=len(self.parts))
        if self._unpublished >= MAX_UNPUBLISHED:
            raise InvalidMessage(
                f"announced a checkpoint while {self._unpublished} earlier checkpoints were still being stored"
            )
        self.written = message.step, message.part
        self._unpublished += 1

    def save_failed(self, step: int) -> bool:
        """Record that the child could not write the checkpoint of `step`. Return whether this checkpoint would have ended the attempt."""
        self.is_saving = False
        return self.closed_by((step, self._closes_with[1]))

    def publisher_finished(self) -> None:
        """Record that the publisher has stored a checkpoint, or has given up."""
        self.is_saving = False
        self._unpublished -= 1

    def made_durable(self, published: Published) -> None:
        """Record that a checkpoint is stored."""
        step = published.step
        if published.part:
            self._stored_part = {"step": step, "train_ns": self.parts[published.part - 1][0]}
            return
        self.durable = max(step, self.durable)
        self._checkpoints.append(
            {
                "step": step,
                "uri": published.uri,
                "bytes": published.size_bytes,
                "seconds": published.seconds,
            }
        )

    @property
    def has_news(self) -> bool:
        """Whether a checkpoint was stored that was not sent to the driver yet."""
        return bool(self._checkpoints) or self._stored_part is not None

    def take_news(self) -> tuple[list[SavedFields], PartFields | None]:
        """Return the checkpoints, and the one from the middle of a step, to send to the driver. Each is returned once."""
        # The driver requests a result only after it has recorded the previous one, so everything in that result is recorded now.
        self._announced, self.recorded = self.durable, self._announced
        checkpoints, self._checkpoints = self._checkpoints, []
        part, self._stored_part = self._stored_part, None
        return checkpoints, part
