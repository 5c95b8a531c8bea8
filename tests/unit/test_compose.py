"""The files for production, checked as far as that goes without Docker: form, commands, variables, pins, secrets."""

import hashlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from temporalio.envconfig import ClientConfig

from holdfast import worker
from holdfast.codecs.s3 import S3Settings
from holdfast.contracts.names import DEFAULT_TASK_QUEUE
from holdfast.starter import cli

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parent / "data"
TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"].startswith("holdfast:")}
ONCE = {name: service for name, service in SERVICES.items() if service["restart"].startswith("on-failure")}
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
EXAMPLE = dict(line.split("=", 1) for line in (ROOT / ".env.example").read_text().splitlines() if line[:1].isalpha())

SECRET_NAME = re.compile(r"(?i)password|passwd|pwd|secret|token|api_?key|_keys?$")
REQUIRED_VARIABLE = re.compile(r"\$\{[A-Z_]+:\?[^}]+\}")
BOTOS_OWN = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
PINNED = re.compile(r"[\w./-]+:v?\d+\.\d+(\.\d+)?(-[\w.-]+)?")


def schema() -> Draft202012Validator:
    return Draft202012Validator(json.loads((DATA / "compose-spec.json").read_text()))


def complaints(compose: Any) -> list[str]:
    errors = schema().iter_errors(compose)  # pyright: ignore[reportUnknownMemberType] (a stub without a parameter)
    return [f"{error.json_path}: {error.message}" for error in errors]


def instruction(name: str) -> list[str]:
    """The arguments of the last ENTRYPOINT, CMD or HEALTHCHECK CMD of the Dockerfile, in its JSON form."""
    found = re.findall(rf"^{name}\s+.*?(\[.*\])\s*$", DOCKERFILE, re.MULTILINE)
    return json.loads(found[-1])


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every holdfast command that the two files start."""
    entrypoint = instruction("ENTRYPOINT")
    yield "Dockerfile", [*entrypoint, *instruction("CMD")]
    for name, service in OURS.items():
        yield name, [*service.get("entrypoint", entrypoint), *service["command"]]


def parsed(command: list[str]) -> Any:
    """By the command line, and where it is the worker's, by the worker, which it hands its options to."""
    assert command[0] == "holdfast"
    options = cli.parser().parse_args(command[1:])
    assert options.command in ("worker", "serve", "codec-server"), f"{command}: what does it do in production?"
    return worker.parser().parse_args(command[2:]) if options.command == "worker" else options


def is_temporals_own(name: str) -> bool:
    """Whether the SDK's settings change when the variable is set."""
    value = "true" if name == "TEMPORAL_TLS" else "x"
    without = ClientConfig.load_client_connect_config(disable_file=True, override_env_vars={})
    return ClientConfig.load_client_connect_config(disable_file=True, override_env_vars={name: value}) != without


def environment(service: dict[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in service.get("environment", {}).items()}


def test_the_compose_file_has_the_form_of_the_specification() -> None:
    assert complaints(COMPOSE) == []


def test_the_schema_is_the_real_one_and_refuses_what_compose_would() -> None:
    stated = re.search(r"SHA-256: `(\w+)`", (DATA / "README.md").read_text())

    assert stated is not None
    assert hashlib.sha256((DATA / "compose-spec.json").read_bytes()).hexdigest() == stated[1]
    assert complaints({"services": {"worker": {"image": "a:1.0", "restarts": "always"}}})
    assert complaints({"services": {"worker": {"image": "a:1.0", "depends_on": {"db": {"condition": "ready"}}}}})


@pytest.mark.parametrize(("place", "command"), list(commands()))
def test_every_command_is_one_that_our_own_parser_takes(place: str, command: list[str]) -> None:
    options = parsed(command)

    assert getattr(options, "task_queue", DEFAULT_TASK_QUEUE) == DEFAULT_TASK_QUEUE
    # What listens on all addresses of its container asks for a token.
    assert getattr(options, "host", "127.0.0.1") == "127.0.0.1" or options.tokens == "/run/secrets/tokens"


def test_the_health_check_asks_about_the_task_queue_that_the_worker_polls() -> None:
    shell, flag, script = instruction("HEALTHCHECK")

    assert (shell, flag) == ("sh", "-c")
    words = shlex.split(script)
    assert words[words.index("--task-queue") + 1] == DEFAULT_TASK_QUEUE


@pytest.mark.parametrize("name", sorted({name for service in OURS.values() for name in environment(service)}))
def test_every_variable_of_our_services_is_read_by_somebody(name: str) -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "holdfast").rglob("*.py"))

    assert f'"{name}"' in sources or is_temporals_own(name) or name in BOTOS_OWN


def test_a_misspelt_variable_of_temporal_is_noticed() -> None:
    assert is_temporals_own("TEMPORAL_ADDRESS")
    assert not is_temporals_own("TEMPORAL_ADRESS")


def test_every_image_is_pinned_to_a_version() -> None:
    bases = re.findall(r"^FROM\s+(\S+)", DOCKERFILE, re.MULTILINE)
    images = [*bases, *(service["image"] for service in SERVICES.values())]

    assert len(bases) == 2
    assert [image for image in images if not PINNED.fullmatch(image) or "latest" in image] == []


def test_every_variable_of_the_compose_file_is_in_the_example() -> None:
    used = set(re.findall(r"(?<!\$)\$\{?(\w+)", TEXT))

    assert used == set(EXAMPLE)


def test_no_password_is_written_down() -> None:
    literals = [
        f"{name}: {variable}"
        for name, service in SERVICES.items()
        for variable, value in environment(service).items()
        if SECRET_NAME.search(variable) and not REQUIRED_VARIABLE.fullmatch(value)
    ]

    assert literals == []
    assert re.findall(r"(?i)(?:password|pwd|secret|token)=\S+", TEXT) == []
    assert re.findall(r"://[^/\s]+:[^/\s]+@", TEXT) == []
    named = [name for name, value in EXAMPLE.items() if SECRET_NAME.search(name) and value]
    # A file is where a secret is, and not the secret.
    assert [name for name in named if not name.endswith("_FILE")] == []


def test_every_port_is_on_the_loopback_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]

    assert ports
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_every_service_restarts_and_says_whether_it_is_well() -> None:
    # The image asks whether its container polls, which only a worker does.
    checked_by_its_image = {"worker"} if "\nHEALTHCHECK " in DOCKERFILE else set[str]()
    lasting = SERVICES.keys() - ONCE.keys()

    assert {name for name in lasting if SERVICES[name]["restart"] != "unless-stopped"} == set()
    assert {name for name in lasting - checked_by_its_image if "healthcheck" not in SERVICES[name]} == set()


def test_a_service_waits_for_what_it_needs() -> None:
    for name, service in SERVICES.items():
        for needed, edge in service.get("depends_on", {}).items():
            wanted = "service_completed_successfully" if needed in ONCE else "service_healthy"
            assert edge["condition"] == wanted, f"{name} on {needed}"
    assert set(SERVICES["worker"]["depends_on"]) == {"temporal", "temporal-namespace", "seaweedfs"}


def test_all_who_read_payloads_have_the_same_keys_and_the_same_store() -> None:
    payloads = COMPOSE["x-payloads"]
    store = S3Settings.from_url(payloads["HOLDFAST_BLOBS"])

    assert set(OURS) == {"worker", "api", "codec-server"}
    for service in OURS.values():
        assert payloads.items() <= environment(service).items()
    assert f"-bucket={store.bucket}" in SERVICES["seaweedfs"]["command"]
    assert store.endpoint_url == "http://seaweedfs:8333"
    for variable in BOTOS_OWN:
        assert environment(SERVICES["seaweedfs"])[variable] == payloads[variable]


def test_the_store_is_started_with_options_that_it_has() -> None:
    weed = Path(sys.executable).parent / "weed"
    known = subprocess.run([weed, "mini", "-h"], capture_output=True, text=True, timeout=30)
    verb, *options = SERVICES["seaweedfs"]["command"]
    version = subprocess.run([weed, "version"], capture_output=True, text=True, timeout=30).stdout

    assert (SERVICES["seaweedfs"]["entrypoint"], verb) == (["weed"], "mini")
    offered = set(re.findall(r"^  (-[\w.]+)", known.stdout + known.stderr, re.MULTILINE))
    assert {option.partition("=")[0] for option in options} - offered == set()
    assert SERVICES["seaweedfs"]["image"].rpartition(":")[2] in version


def test_the_web_ui_asks_the_codec_server_that_lets_it() -> None:
    web_ui, command = environment(SERVICES["temporal-ui"]), SERVICES["codec-server"]["command"]
    published = {name: SERVICES[name]["ports"][0].rpartition(":")[0] for name in ("temporal-ui", "codec-server")}

    assert web_ui["TEMPORAL_CODEC_ENDPOINT"].startswith("${CODEC_SERVER_URL:?")
    assert web_ui["TEMPORAL_CODEC_INCLUDE_CREDENTIALS"] == "true"
    assert command[command.index("--origin") + 1].startswith("${WEB_UI_URL:?")
    assert EXAMPLE["CODEC_SERVER_URL"] == f"http://{published['codec-server']}"
    assert EXAMPLE["WEB_UI_URL"] == f"http://{published['temporal-ui']}"


def test_the_image_does_not_run_as_root() -> None:
    final = DOCKERFILE.rsplit("\nFROM ", 1)[1]

    assert re.findall(r"^USER\s+(\S+)", final, re.MULTILINE)[-1] not in ("root", "0")
    assert "--constraint constraints.txt" in DOCKERFILE


def test_the_image_gets_no_more_than_it_is_built_from() -> None:
    copied = {
        source
        for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    }
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]

    assert lines[0] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == copied
