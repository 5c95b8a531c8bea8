"""A real S3 server, SeaweedFS, on free ports of 127.0.0.1: it can be killed, and started again with all it had."""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from holdfast.starter.embedded import free_port

ACCESS_KEY, SECRET = "holdfast-tests", "not-a-secret-of-anybody"
_PORTS = ("s3.port", "master.port", "volume.port", "filer.port", "admin.port")
_SWITCHED_OFF = (
    "-webdav=false",
    "-admin.ui=false",
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
    "-master.telemetry=false",
)
_THERE_ALREADY = ("BucketAlreadyOwnedByYou", "BucketAlreadyExists", "PreconditionFailed")
_READY = "ready"
_LONGEST_START = 60.0


class S3Server:
    """Runs while the block lasts. What was put survives `kill` and `start`."""

    def __init__(self, directory: Path, bucket: str = "blobs") -> None:
        self.bucket = bucket
        self.access_key, self.secret = ACCESS_KEY, SECRET
        self._directory = directory
        self._ports = _free_ports()
        self.endpoint = f"http://127.0.0.1:{self._ports['s3.port']}"
        self._process: subprocess.Popen[bytes] | None = None
        boto3: Any = import_module("boto3")
        config: Any = import_module("botocore.config")
        self._errors: Any = import_module("botocore.exceptions")
        self.client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret,
            config=config.Config(connect_timeout=1, read_timeout=5, retries={"total_max_attempts": 1}),
        )

    @property
    def environment(self) -> dict[str, str]:
        """Where boto3 looks for credentials."""
        return {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret}

    def url(self, prefix: str = "") -> str:
        """For `open_store`."""
        return f"s3://{self.bucket}/{prefix}?endpoint={self.endpoint}&region=us-east-1"

    def uploads(self, prefix: str) -> list[str]:
        """The names of those that were begun and neither completed nor aborted."""
        page = self.client.list_multipart_uploads(Bucket=self.bucket, Prefix=f"{prefix}/")
        return [upload["Key"] for upload in page.get("Uploads", [])]

    def __enter__(self) -> "S3Server":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """On the same ports and directory as before."""
        self._directory.mkdir(parents=True, exist_ok=True)
        config, log = self._directory / "s3.json", self._directory / "weed.log"
        config.write_text(json.dumps({"identities": [self._identity()]}))
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    str(Path(sys.executable).parent / "weed"),
                    "mini",
                    f"-dir={self._directory / 'data'}",
                    "-ip=127.0.0.1",
                    "-ip.bind=127.0.0.1",
                    f"-s3.config={config}",
                    "-s3.autoCreateBucket=false",
                    *(f"-{name}={port}" for name, port in self._ports.items()),
                    *_SWITCHED_OFF,
                ],
                cwd=self._directory,
                stdout=output,
                stderr=output,
            )
        self._wait_until_ready(self._process, log)

    def _identity(self) -> dict[str, object]:
        keys = {"accessKey": self.access_key, "secretKey": self.secret}
        return {"name": "tests", "credentials": [keys], "actions": ["Admin", "Read", "List", "Tagging", "Write"]}

    def _wait_until_ready(self, process: subprocess.Popen[bytes], log: Path) -> None:
        deadline = time.monotonic() + _LONGEST_START
        while not self._is_ready():
            if process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"SeaweedFS did not start:\n{log.read_text()[-4000:]}")
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        # A server that is started again takes writes at once, and answers reads of what it had with 500 for up to five
        # seconds. `-bucket` is of no use: it makes the bucket some time after the first answer.
        try:
            for bucket in (self.bucket, _READY):
                self._once(self.client.create_bucket, Bucket=bucket)
            self._once(self.client.put_object, Bucket=_READY, Key=_READY, Body=b"x", IfNoneMatch="*")
            self.client.get_object(Bucket=_READY, Key=_READY)["Body"].read()
        except (self._errors.BotoCoreError, self._errors.ClientError):
            return False
        return True

    def _once(self, make: Callable[..., Any], **arguments: Any) -> None:
        try:
            make(**arguments)
        except self._errors.ClientError as error:
            if error.response["Error"]["Code"] not in _THERE_ALREADY:
                raise

    def kill(self) -> None:
        """SIGKILL: it writes nothing more."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Connections are taken, and nothing is answered, until `go_on`."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """SIGTERM: a graceful end."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
            self._process = None


def _free_ports() -> dict[str, int]:
    """Below those that outgoing connections get, so that they are still free when the server is started again."""
    ports: dict[str, int] = {}
    for name in (name for port in _PORTS for name in (port, f"{port}.grpc")):
        while True:
            port = random.randrange(20_000, 32_000)
            if port not in ports.values() and free_port(port) == port:
                ports[name] = port
                break
    return ports
