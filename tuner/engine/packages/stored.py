"""Store and read packages in shared storage, by their digest: `<storage>/<project>/packages/<sha256>.zip`."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tuner.domain.errors import BadFile
from tuner.domain.ids import PACKAGE_ID, package_id
from tuner.engine.storage import Storage

FOLDER = "packages"


class PackageLost(BadFile):
    """The package in storage is not the one that was uploaded."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The id of a package and its place in storage. The id contains the digest, so the bytes can be checked against it."""

    storage: str
    project: str
    id: str

    @classmethod
    def parse(cls, message: Mapping[str, str] | None) -> "Stored | None":
        return None if message is None else cls(**message)

    def message(self) -> dict[str, str]:
        return asdict(self)

    @property
    def digest(self) -> str:
        if not PACKAGE_ID.fullmatch(self.id):  # the digest becomes part of a file name
            raise ValueError(f"{self.id!r} is no id of a package")
        return self.id.removeprefix("pkg_")

    def put(self, data: bytes) -> None:
        """Store the package durably and atomically. Errors of the storage propagate."""
        assert id_of(data) == self.id
        Storage(self.storage).put_file(data, *self._where(), durably=True)

    def get(self) -> bytes:
        """Return the bytes of the package.

        Raises:
            PackageLost: The package is missing or its digest differs.
            Exception: Any other error of the storage.
        """
        try:
            data = Storage(self.storage).read(*self._where())
        except FileNotFoundError as error:
            raise PackageLost(f"{self.id} is no longer in the storage: upload it again") from error
        if id_of(data) != self.id:
            raise PackageLost(
                f"{self.id} was changed in the storage, and is not what was uploaded: upload it again, and look who writes there"
            )
        return data

    def _where(self) -> tuple[str, str, str]:
        return self.project, FOLDER, f"{self.digest}.zip"


def id_of(data: bytes) -> str:
    return package_id(hashlib.sha256(data).hexdigest())
