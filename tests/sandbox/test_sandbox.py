"""Every workflow loads in the real sandbox, with nothing imported there that was not planned."""

import subprocess
import sys
from dataclasses import replace

import pytest
from temporalio import workflow
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from holdfast.worker import sandbox
from holdfast.workflows.flow_run import FlowRun
from tests.sandbox.careless import Careless

_STRICT = workflow.SandboxImportNotificationPolicy.RAISE_ON_UNINTENTIONAL_PASSTHROUGH


def _prepare(workflow_class: type) -> None:
    runner = SandboxedWorkflowRunner(restrictions=replace(sandbox().restrictions, import_notification_policy=_STRICT))
    runner.prepare_workflow(workflow._Definition.must_from_class(workflow_class))


async def test_flow_run_loads_in_the_sandbox_without_an_unplanned_import() -> None:
    _prepare(FlowRun)


async def test_an_unplanned_import_is_an_error() -> None:
    with pytest.raises(Exception, match=r"holdfast\.starter\.errors"):
        _prepare(Careless)


def test_the_package_itself_imports_nothing_when_it_is_imported_again() -> None:
    script = "import sys, holdfast; print([name for name in sys.modules if name.startswith('holdfast.')])"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert printed.strip() == "[]"
