"""The API keeps what its own document promises: schemathesis tries it, with odd inputs, on a real server."""

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.starter import embedded
from holdfast.starter.cli.session import start_worker
from holdfast.starter.embedded import free_port

ROOT = Path(__file__).parents[2]


@pytest.mark.req("RT-2")
def test_nothing_that_is_sent_to_the_api_makes_it_fail(tmp_path: Path) -> None:
    port = free_port()
    with embedded.server(tmp_path, 0, 0) as server:
        worker = start_worker(server, tmp_path, [], "holdfast")
        api = subprocess.Popen(
            [sys.executable, "-m", "holdfast.starter.cli", "serve", "--address", server.address, "--port", str(port)],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert api.stdout is not None
            assert "console" in api.stdout.readline()
            # The stream is left out: it is meant to stay open.
            tried = subprocess.run(
                [
                    str(Path(sys.executable).with_name("schemathesis")), "run", f"http://127.0.0.1:{port}/openapi.json",
                    "--url", f"http://127.0.0.1:{port}", "--checks", "not_a_server_error", "--phases", "fuzzing",
                    "--max-examples", "15", "--exclude-path-regex", "/stream$", "--seed", "7",
                    "--request-timeout", "20", "--rate-limit", "400/m",
                ],
                capture_output=True,
                text=True,
                timeout=280,
                cwd=tmp_path,
            )  # fmt: skip
        finally:
            api.kill()
            api.communicate()
            embedded.stop(worker)

    assert tried.returncode == 0, tried.stdout[-4000:] + tried.stderr[-1000:]
