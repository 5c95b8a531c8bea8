"""Blobs in S3, or in anything that speaks its protocol.

boto3 is an extra, and imported by the first store that needs it. It has no types: all that comes from it passes through
`_ask`, which also says what a failure means.
"""

import asyncio
import random
import re
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import import_module
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.codecs.blobs import (
    BadStoreError,
    Blob,
    MissingBlobError,
    StoreRefusedError,
    StoreUnavailableError,
    check_name,
    check_prefix,
    is_name,
)

_CONNECTIONS = 16
_CONNECT_SECONDS, _READ_SECONDS = 2, 10
_LARGE = 16 * 2**20
_PART = 8 * 2**20
_PARTS_AT_ONCE = 4
_MOST_DELETED = 1000
_LONGEST_PREFIX = 300
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_OPTIONS = ("endpoint", "region", "addressing")

# Besides every 5xx. A conflict is somebody who writes the same name at this moment; a bad digest, bytes that were
# changed on their way; a missing upload or part, one that was lost meanwhile, so that all of it has to be put again.
_PASSING = {
    "BadDigest",
    "ConditionalRequestConflict",
    "IncompleteBody",
    "InternalError",
    "InvalidPart",
    "NoSuchUpload",
    "OperationAborted",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
}
_CREDENTIALS = (
    "check the credentials that boto3 finds: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role"
)
_REGION = "check the region"
_REMEDIES = {
    "NoSuchBucket": "make the bucket, or mend its name",
    "InvalidAccessKeyId": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "ExpiredToken": _CREDENTIALS,
    "InvalidToken": _CREDENTIALS,
    "NoCredentialsError": _CREDENTIALS,
    "PartialCredentialsError": _CREDENTIALS,
    "ProfileNotFound": _CREDENTIALS,
    "AuthorizationHeaderMalformed": _REGION,
    "PermanentRedirect": _REGION,
    "RequestTimeTooSkewed": "set this machine's clock",
}
_PERMISSIONS = "check that the credentials may list the bucket, and read, write and delete the objects in it"


@dataclass(frozen=True)
class S3Settings:
    """Which bucket, and where. Credentials are not among them: boto3 finds those."""

    bucket: str
    prefix: str = ""
    """In the bucket, without slashes at its ends. Two stores in one bucket have two prefixes."""
    endpoint_url: str | None = None
    region: str | None = None
    path_style: bool | None = None
    """`endpoint/bucket` instead of `bucket.endpoint`; None: where an endpoint is given."""

    @classmethod
    def from_url(cls, url: str) -> Self:
        """`s3://bucket/prefix?endpoint=http://127.0.0.1:8333&region=…&addressing=path`; BadStoreError."""
        parts = urlsplit(url)
        if "@" in parts.netloc:
            raise BadStoreError(f"credentials do not belong in a URL: {_CREDENTIALS}")
        if parts.scheme != "s3" or not _BUCKET.fullmatch(parts.netloc):
            raise BadStoreError("after s3:// there must be the name of a bucket: letters, digits, dots and dashes")
        if parts.fragment:
            raise BadStoreError("an S3 URL has no part after '#'")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        for name, value in options.items():
            if name not in _OPTIONS:
                raise BadStoreError(f"an S3 URL has no option {name!r}; it has {', '.join(_OPTIONS)}")
            if not value:
                raise BadStoreError(f"the option {name!r} is empty")
        addressing = options.get("addressing")
        if addressing not in (None, "path", "virtual"):
            raise BadStoreError("the option 'addressing' is 'path' or 'virtual'")
        return cls(
            parts.netloc,
            _prefix(unquote(parts.path)),
            _endpoint(options["endpoint"]) if "endpoint" in options else None,
            options.get("region"),
            addressing and addressing == "path",
        )

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix} at {self.endpoint_url or 'Amazon S3'}"


def _prefix(path: str) -> str:
    prefix = path.strip("/")
    if prefix and (not is_name(prefix) or len(prefix.encode()) > _LONGEST_PREFIX):
        raise BadStoreError(f"{prefix!r} is no prefix: its parts have no dot in front, and it has at most 300 bytes")
    return prefix


def _endpoint(url: str) -> str:
    if "@" in url:
        raise BadStoreError(f"credentials do not belong in a URL: {_CREDENTIALS}")
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise BadStoreError(f"the endpoint {url!r} is no http:// or https:// URL")
    return url


class S3Blobs:
    """One bucket. `patience` is for how many seconds a request is begun again before the store counts as away.

    A name that is there is never written again: puts are conditional. A store that ignores the condition writes the
    same bytes once more.
    """

    def __init__(self, settings: S3Settings, *, patience: float = 5.0) -> None:
        self._settings = settings
        self._patience = patience
        self._prefix = f"{settings.prefix}/" if settings.prefix else ""
        self._errors, self._client = _connect(settings)
        # As many threads as connections: none waits for the other.
        self._threads = ThreadPoolExecutor(_CONNECTIONS, "holdfast-s3")

    def _key(self, name: str) -> str:
        check_name(name)
        return f"{self._prefix}{name}"

    async def check(self) -> None:
        # One name for all who check, so that a killed one leaves at most one; another may have deleted it already.
        key = f"{self._prefix}.check"
        await self._ask("put_object", Key=key, Body=b"holdfast")
        await self._ask("get_object", Key=key, when={"NoSuchKey": None})
        await self._ask("list_objects_v2", Prefix=key, MaxKeys=1)
        await self._delete([key])

    async def put(self, name: str, data: bytes, *, fresh: bool = False) -> None:
        key = self._key(name)
        if len(data) > _LARGE:
            await self._put_in_parts(key, data)
        elif fresh:
            await self._ask("put_object", Key=key, Body=data)
        else:
            await self._ask("put_object", Key=key, Body=data, IfNoneMatch="*", when={"PreconditionFailed": None})

    async def _put_in_parts(self, key: str, data: bytes) -> None:
        if await self._is_there(key):
            return
        upload = await self._begin_upload(key)
        try:
            parts = await self._upload_parts(upload, data)
        except BaseException:
            await self._abort(upload)
            raise
        complete = partial(
            self._ask,
            "complete_multipart_upload",
            **upload,
            MultipartUpload={"Parts": parts},
            IfNoneMatch="*",
            when={"PreconditionFailed": None},
        )
        try:
            if await complete(patience=0) is None:
                await self._abort(upload)  # Somebody else was first.
        except StoreUnavailableError:
            # It may have been completed all the same, and nothing is aborted from here on: a server that was killed
            # before it forgot the upload could take the parts of an object for those of none.
            await complete()

    async def _begin_upload(self, key: str) -> dict[str, Any]:
        async def begin() -> dict[str, Any]:
            return {"Key": key, "UploadId": (await self._ask("create_multipart_upload", Key=key))["UploadId"]}

        beginning = asyncio.create_task(begin())
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:
            # The server may have begun it already: whoever gives up has to learn its name, to abort it.
            with suppress(StoreUnavailableError, StoreRefusedError):
                await self._abort(await beginning)
            raise

    async def _upload_parts(self, upload: Mapping[str, Any], data: bytes) -> list[dict[str, Any]]:
        slots = asyncio.Semaphore(_PARTS_AT_ONCE)

        async def send(start: int) -> dict[str, Any]:
            number = start // _PART + 1
            async with slots:
                part = data[start : start + _PART]
                answer = await self._ask("upload_part", **upload, PartNumber=number, Body=part)
            return {"PartNumber": number, "ETag": answer["ETag"]}

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(send(start)) for start in range(0, len(data), _PART)]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _abort(self, upload: Mapping[str, Any]) -> None:
        # What cannot be aborted now is found by `tidy`, or by the bucket's own rule.
        with suppress(StoreUnavailableError, StoreRefusedError):
            await self._ask("abort_multipart_upload", **upload, patience=0, when={"NoSuchUpload": None})

    async def _is_there(self, key: str) -> bool:
        return await self._ask("head_object", Key=key, when={"404": None, "NoSuchKey": None}) is not None

    async def get(self, name: str, start: int = 0, size: int | None = None) -> bytes:
        key = self._key(name)
        # There is no empty range: one byte tells whether the blob is there.
        last = "" if size is None else start + max(size, 1) - 1
        wanted: dict[str, Any] = {} if start == 0 and size is None else {"Range": f"bytes={start}-{last}"}
        found = await self._ask(
            "get_object", Key=key, **wanted, when={"NoSuchKey": None, "InvalidRange": {"Body": b""}}
        )
        if found is None:
            raise MissingBlobError(name, str(self._settings))
        return found["Body"] if size is None else found["Body"][:size]

    async def find(self, prefix: str) -> AsyncGenerator[Blob]:
        check_prefix(prefix)
        following: dict[str, Any] = {}
        while True:
            page = await self._ask("list_objects_v2", Prefix=f"{self._prefix}{prefix}", **following)
            for item in page.get("Contents", []):
                name = item["Key"].removeprefix(self._prefix)
                if is_name(name):
                    yield Blob(name, item["Size"], item["LastModified"].astimezone(UTC))
            if not page.get("IsTruncated"):
                return
            following = {"ContinuationToken": page["NextContinuationToken"]}

    async def delete(self, names: Sequence[str]) -> None:
        keys = [self._key(name) for name in names]
        for start in range(0, len(keys), _MOST_DELETED):
            await self._delete(keys[start : start + _MOST_DELETED])

    async def _delete(self, keys: Sequence[str]) -> None:
        await self._ask("delete_objects", Delete={"Objects": [{"Key": key} for key in keys], "Quiet": True})

    async def tidy(self, older_than: timedelta) -> int:
        before = datetime.now(UTC) - older_than
        count, following = 0, dict[str, Any]()
        while True:
            page = await self._ask("list_multipart_uploads", Prefix=self._prefix, **following)
            for upload in page.get("Uploads", []):
                # One whose name is there may have made it, and is left alone: see `_put_in_parts`.
                if upload["Initiated"] < before and not await self._is_there(upload["Key"]):
                    await self._abort({"Key": upload["Key"], "UploadId": upload["UploadId"]})
                    count += 1
            if not page.get("IsTruncated"):
                return count
            following = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    async def _ask(
        self, operation: str, *, patience: float | None = None, when: Mapping[str, Any] | None = None, **arguments: Any
    ) -> Any:
        """The answer, or what `when` has for a failure's code. What may pass is tried again while there is time."""
        request = partial(self._request, operation, arguments)
        deadline = time.monotonic() + (self._patience if patience is None else patience)
        pause = 0.1
        while True:
            try:
                return await asyncio.get_running_loop().run_in_executor(self._threads, request)
            except (self._errors.BotoCoreError, self._errors.ClientError) as error:
                code = _code(error)
                if when and code in when:
                    return when[code]
                if not self._may_pass(error):
                    reason, remedy = f"{operation}: {error}", _REMEDIES.get(code, _PERMISSIONS)
                    raise StoreRefusedError(str(self._settings), reason, remedy) from error
                wait = pause * random.uniform(0.5, 1)  # noqa: S311
                if time.monotonic() + wait > deadline:
                    raise StoreUnavailableError(str(self._settings), error) from error
            await asyncio.sleep(wait)
            pause = min(2 * pause, 1.0)

    def _request(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        """In a thread: all that waits for the network."""
        answer: Any = getattr(self._client, operation)(Bucket=self._settings.bucket, **arguments)
        if operation == "get_object":
            with answer["Body"] as body:
                return {"Body": body.read()}
        for failed in answer.get("Errors", []):
            # Of a deletion that is otherwise answered with 200.
            if failed["Code"] != "NoSuchKey":
                raise self._errors.ClientError({"Error": failed}, operation)
        return answer

    def _may_pass(self, error: Exception) -> bool:
        errors = self._errors
        if isinstance(error, errors.ClientError):
            status = _response(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            # 501: it will never be able to.
            return _code(error) in _PASSING or status in (408, 429) or (status >= 500 and status != 501)
        return isinstance(
            error,
            errors.ConnectionError
            | errors.HTTPClientError
            | errors.IncompleteReadError
            | errors.ResponseStreamingError
            | errors.FlexibleChecksumError
            | errors.CredentialRetrievalError
            | errors.MetadataRetrievalError,
        )


def _connect(settings: S3Settings) -> tuple[Any, Any]:
    """boto3's errors, and its client, which is safe to use in many threads."""
    try:
        boto3: Any = import_module("boto3")
    except ModuleNotFoundError:
        raise ImportError("[blob/no-extra] blobs in S3 need boto3: run `pip install 'holdfast[s3]'`") from None
    errors: Any = import_module("botocore.exceptions")
    config: Any = import_module("botocore.config")
    path_style = settings.path_style
    if path_style is None and settings.endpoint_url:
        path_style = True
    style = {True: "path", False: "virtual", None: "auto"}[path_style]
    try:
        client = boto3.session.Session().client(
            "s3",
            endpoint_url=settings.endpoint_url,
            region_name=settings.region,
            config=config.Config(
                connect_timeout=_CONNECT_SECONDS,
                read_timeout=_READ_SECONDS,
                max_pool_connections=_CONNECTIONS,
                # We try again ourselves, and say so.
                retries={"total_max_attempts": 1},
                s3={"addressing_style": style},
            ),
        )
    except errors.BotoCoreError as error:
        remedy = _REMEDIES.get(_code(error), "mend the URL of the store")
        raise StoreRefusedError(str(settings), error, remedy) from error
    return errors, client


def _response(error: Exception) -> Mapping[str, Any]:
    return getattr(error, "response", None) or {}


def _code(error: Exception) -> str:
    """Of the service, or the name of boto3's own error."""
    return str(_response(error).get("Error", {}).get("Code", type(error).__name__))
