"""What an author writes for an agent's files: where they are kept, how much of them. Their tools have these names."""

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from holdfast.flows.params import Params

LIST, READ, WRITE, SEARCH = "list_files", "read_file", "write_file", "search_files"
FILE_TOOLS = (LIST, READ, WRITE, SEARCH)
"""The names under which the model of an agent with a file store finds its tools."""

_FOLDER = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_ .=+@-]{0,99}")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_OWN: dict[str, tuple[str, ...]] = {"memory": (), "local": ("path",), "s3": ("connection", "bucket", "prefix")}
_STORE_BYTES = {"memory": 8 * 2**20, "local": 2**30, "s3": 2**30}


class FileStoreParams(Params):
    """Where an agent's files are. `memory`: in the checkpoint; `local`: a directory that all workers see; `s3`.

    `connection` names an `s3://bucket/prefix` on the worker; `bucket` is one that the worker's own credentials open.
    """

    type: Literal["memory", "local", "s3"]
    path: str | None = None
    connection: str | None = None
    bucket: str | None = None
    prefix: str | None = None
    max_file_bytes: int = Field(default=100 * 2**20, ge=1)
    max_bytes: int | None = Field(default=None, ge=1)
    max_files: int = Field(default=1000, ge=1)

    @property
    def limit(self) -> int:
        """How many bytes all files may have together. What is in memory is in every checkpoint, so it is less."""
        return self.max_bytes or _STORE_BYTES[self.type]

    @field_validator("path", "prefix")
    @classmethod
    def _relative(cls, given: str | None) -> str | None:
        parts = [] if given is None else given.split("/")
        if len(given or "") > 300 or not all(_FOLDER.fullmatch(part) for part in parts):
            raise ValueError(f"{given!r} has to be of the form 'agents/2026': relative, with no dot in front of a part")
        return given

    @field_validator("bucket")
    @classmethod
    def _bucket(cls, given: str | None) -> str | None:
        if given is not None and not _BUCKET.fullmatch(given):
            raise ValueError(f"{given!r} is no name of a bucket; an address with credentials belongs to a 'connection'")
        return given

    @model_validator(mode="after")
    def _fields(self) -> "FileStoreParams":
        given: dict[str, Any] = {name: getattr(self, name) for names in _OWN.values() for name in names}
        foreign = [name for name, value in given.items() if value is not None and name not in _OWN[self.type]]
        if foreign:
            raise ValueError(f"a store of type {self.type!r} has no {foreign[0]!r}")
        if self.type == "local" and self.path is None:
            raise ValueError("a local store needs 'path', a directory under HOLDFAST_FILES on the workers")
        if self.type == "s3" and (self.connection is None) == (self.bucket is None):
            raise ValueError("an s3 store needs either 'connection' or 'bucket'")
        return self
