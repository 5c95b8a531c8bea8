"""The command line. Imports next to nothing, so that help is there at once; commands load what they need."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NoReturn

HELP = """\
Run flows that survive crashes.

  holdfast dev                    embedded Temporal server, Web UI and a worker, until Ctrl-C
  holdfast run FLOW               start a flow and follow it to its end
  holdfast runs                   the runs there are
  holdfast show RUN               where a run is, node by node
  holdfast checkpoints RUN        the run's checkpoints   (checkpoint: one of them, as JSON or YAML)
  holdfast resume ID              go on with a run that has ended   (fork: beside it; rerun: a node again)
  holdfast diff ID ID             two checkpoints compared   (history: of one node; tree: where runs come from)
  holdfast export ID [FILE]       a checkpoint as a file   (import: go on from it, here or elsewhere)
  holdfast gc                     delete old runs, by their retention   (delete: this one)
  holdfast cancel RUN             end a run; what it has done is kept   (pause: for now; continue: go on)
  holdfast inbox                  the questions that wait for an answer
  holdfast approve RUN [REQUEST]  let it be done   (reject: not; answer: words, a choice, a form)
  holdfast watch RUN              a run, live
  holdfast serve                  the HTTP API and the console page   (openapi: its document)
  holdfast codec-server           what payloads hold, for Temporal's own Web UI and command line
  holdfast check FLOW             find mistakes without running anything   (simulate: with scripted results)
  holdfast worker                 a worker for a server that runs elsewhere   (stop: what 'run --detach' left running)

Where Temporal is: --address, --namespace (TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, Temporal's profiles).
With none of these, the embedded server in .holdfast/ is used, and started if need be.
Every command takes --json. 'holdfast COMMAND --help' has the details.
Exit codes: 0 finished  1 the flow failed  2 wrong usage  3 Temporal not reachable  4 not found

holdfast run examples/hello.yaml --input name=World
"""


def parser() -> argparse.ArgumentParser:
    """Every command and its options."""
    top = argparse.ArgumentParser(prog="holdfast", add_help=False)
    top.add_argument("-h", "--help", action="store_true")
    top.add_argument("--version", action="store_true")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")

    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print JSON with stable fields")
    server = argparse.ArgumentParser(add_help=False, parents=[common])
    server.add_argument("--address", help="Temporal's address (default: TEMPORAL_ADDRESS, else the embedded server)")
    server.add_argument("--namespace", help="Temporal's namespace (default: TEMPORAL_NAMESPACE, else 'default')")
    loading = argparse.ArgumentParser(add_help=False)
    loading.add_argument("--load", action="append", default=[], metavar="MODULE", help="a module with custom nodes")
    queue = argparse.ArgumentParser(add_help=False)
    queue.add_argument("--task-queue", default="holdfast", help="the workers' task queue (default: holdfast)")
    giving = argparse.ArgumentParser(add_help=False)
    giving.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="VALUE",
        help="'key=value', 'key=@file', '@file.json' or a JSON object; repeatable",
    )

    def add(name: str, summary: str, example: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=example,
            parents=list(parents),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    dev = add(
        "dev", "embedded Temporal server, Web UI and a worker, until Ctrl-C", "holdfast dev", common, loading, queue
    )
    dev.add_argument("--port", type=int, help="Temporal's port (default: the last one, else 7233, else a free one)")
    dev.add_argument(
        "--ui-port", type=int, help="the Web UI's port (default: the last one, else 8233, else a free one)"
    )

    dev.add_argument(
        "--console-port", type=int, default=8080, help="the console's port (default: 8080, else a free one)"
    )
    dev.add_argument("--codec-port", type=int, help="the codec server's port (default: the last one, else a free one)")
    dev.add_argument("--flows", metavar="FOLDER", help="flows in YAML that can be started by name in the console")

    run = add(
        "run",
        "start a flow and follow it to its end",
        "holdfast run examples/hello.yaml --input name=World",
        server,
        loading,
        queue,
        giving,
    )
    run.add_argument("flow", metavar="FLOW", help="a flow in YAML")
    run.add_argument("--id", help="the run's id (default: the flow's id and a UUID)")
    run.add_argument("--detach", action="store_true", help="start it and return")

    source = argparse.ArgumentParser(add_help=False)
    source.add_argument("checkpoint", metavar="ID", help="a checkpoint's id, or a run's for its latest")
    travel = argparse.ArgumentParser(add_help=False)
    travel.add_argument("--flow", metavar="FLOW", help="a changed definition (default: the one the run had)")
    travel.add_argument("--key", type=_key, help="the same key again is the same run: safe to repeat after a crash")
    travel.add_argument("--dry-run", action="store_true", help="say what each node would do, and start nothing")
    travel.add_argument("--detach", action="store_true", help="start it and return")
    changing = argparse.ArgumentParser(add_help=False)
    changing.add_argument(
        "--edit",
        action="append",
        default=[],
        metavar="NODE:FIELD=VALUE",
        help="change what is in the checkpoint: 'draft:output.text=Hi', 'agent:messages=@file.json'; repeatable",
    )
    changing.add_argument(
        "--keep", action="append", default=[], metavar="NODE", help="keep a result although its node has changed"
    )
    add(
        "resume",
        "go on with a run that has ended: only what was not done is",
        "holdfast resume my-run   # its latest checkpoint\nholdfast resume my-run@12 --dry-run",
        server,
        loading,
        queue,
        giving,
        source,
        travel,
        changing,
    )
    fork = add(
        "fork",
        "a new run from a checkpoint, beside the old one, which may go on",
        "holdfast fork my-run@12 --edit 'draft:output.text=Hi'\nholdfast fork my-run --flow changed.yaml --dry-run",
        server,
        loading,
        queue,
        giving,
        source,
        travel,
        changing,
    )
    fork.add_argument("--id", help="the new run's id (default: the flow's id and a UUID)")
    rerun = add(
        "rerun",
        "a new run that does a node, and all that comes after it, again",
        "holdfast rerun my-run summarise\nholdfast rerun my-run each --only-failed",
        server,
        loading,
        queue,
        source,
        travel,
    )
    rerun.add_argument("node", metavar="NODE", nargs="+", help="where to begin again")
    rerun.add_argument("--only-failed", action="store_true", help="of a map, only the items that failed")
    rerun.add_argument("--id", help="the new run's id (default: the flow's id and a UUID)")

    secrets = argparse.ArgumentParser(add_help=False)
    secrets.add_argument("--show-secrets", action="store_true", help="do not hide fields with names like 'api_key'")
    words = "what is different between two checkpoints"
    two = add("diff", words, "holdfast diff my-run@12 my-run@15\nholdfast diff my-run my-fork", server, secrets)
    two.add_argument("left", metavar="ID", help="a checkpoint's id, or a run's for its latest")
    two.add_argument("right", metavar="ID")
    words = "how a node changed through a run"
    story = add("history", words, "holdfast history my-run agent messages", server, secrets)
    story.add_argument("run", metavar="RUN")
    story.add_argument(
        "node", metavar="NODE", help="a node, or something inside one: 'agent', 'agent/loop[2]/search[0]'"
    )
    story.add_argument("field", metavar="FIELD", nargs="?", help="only this: output, status, messages, context …")
    tree = add("tree", "what was resumed and forked from what", "holdfast tree my-run", server)
    tree.add_argument("run", metavar="RUN")

    locking = argparse.ArgumentParser(add_help=False)
    locking.add_argument(
        "--key-file", metavar="FILE", help="a passphrase, or 'base64:' and 32 bytes (default: HOLDFAST_EXPORT_KEY)"
    )
    out = add(
        "export",
        "a checkpoint as a file that another namespace, cluster or machine can go on from",
        "holdfast export my-run@12 run.json\nholdfast export my-run run.yaml --for staging --encrypt --key-file key",
        server,
        locking,
        source,
    )
    out.add_argument("file", metavar="FILE", nargs="?", help="*.json or *.yaml (default: the checkpoint's id)")
    out.add_argument("--for", dest="made_for", metavar="NAMESPACE", help="who may import it (default: this namespace)")
    out.add_argument("--encrypt", action="store_true", help="with the key of --key-file or HOLDFAST_EXPORT_KEY")
    out.add_argument("--blobs", metavar="FOLDER", help="large values as files of their own, in this folder")
    out.add_argument("--no-files", action="store_true", help="agents' files in directories and buckets stay there")
    into = add(
        "import",
        "a run that stands where an exported checkpoint is",
        "holdfast import run.json   # paused; 'holdfast continue' lets it go on\n"
        "holdfast import run.json --run\nholdfast import checkpoint.json --flow flow.yaml   # bare, or Dynamiq's",
        server,
        loading,
        queue,
        locking,
    )
    into.add_argument("file", metavar="FILE")
    into.add_argument("--flow", metavar="FLOW", help="the definition, for a bare checkpoint, or a changed one")
    into.add_argument("--run", action="store_true", help="go on at once, and follow it to its end")
    into.add_argument("--id", help="the new run's id (default: made of the file's content and --flow)")
    into.add_argument("--detach", action="store_true", help="with --run: start it and return")
    gone = add("delete", "delete a run that has ended, with all inside it", "holdfast delete my-run", server)
    gone.add_argument("run", metavar="RUN")
    gc = add(
        "gc",
        "delete runs that have ended, by their flow's retention_days or as you say; open ones stay",
        "holdfast gc --dry-run\nholdfast gc --older-than 30\nholdfast gc --flow hello --keep 10",
        server,
    )
    gc.add_argument("--flow", metavar="ID", help="only this flow's")
    gc.add_argument("--older-than", type=_days, metavar="DAYS", help="those that ended longer ago")
    gc.add_argument("--keep", type=_count(0), metavar="N", help="all but the newest N of each flow")
    gc.add_argument("--deep", action="store_true", help="look for unneeded blobs in runs that are there, too")
    gc.add_argument("--dry-run", action="store_true", help="only say what would go")

    runs = add("runs", "the runs there are, newest first", "holdfast runs --status failed", server)
    runs.add_argument("--flow", metavar="ID", help="only this flow's")
    runs.add_argument(
        "--status", choices=["pending", "running", "completed", "failed", "cancelled", "pending_input", "paused"]
    )
    runs.add_argument("--limit", type=_count(1), default=20)

    show = add("show", "where a run is, node by node", "holdfast show my-run", server)
    show.add_argument("run", metavar="RUN")

    listing = add("checkpoints", "a run's checkpoints, newest first", "holdfast checkpoints my-run", server)
    listing.add_argument("run", metavar="RUN")
    listing.add_argument("--limit", type=_count(1), default=None)

    one = add("checkpoint", "one checkpoint", "holdfast checkpoint my-run@12 --format yaml", server, secrets)
    one.add_argument(
        "id", metavar="ID", nargs="?", help="a checkpoint's id, or a run's; default: the newest run's latest"
    )
    one.add_argument("--format", choices=["json", "yaml"], default="json")

    watch = add("watch", "a run, live, until it ends", "holdfast watch my-run", server)
    watch.add_argument("run", metavar="RUN")
    watch.add_argument("--after", type=int, default=0, metavar="ID", help="only events after this number")

    person = argparse.ArgumentParser(add_help=False)
    person.add_argument("--by", metavar="NAME", help="who it is (default: your user name)")
    question = argparse.ArgumentParser(add_help=False)
    question.add_argument("run", metavar="RUN")
    question.add_argument("request", metavar="REQUEST", nargs="?", help="the question; default: the one that is open")
    question.add_argument("--feedback", metavar="TEXT", help="your words")

    box = add("inbox", "the questions that wait for an answer", "holdfast inbox --to finance", server)
    box.add_argument("--run", help="only of this run and the flows inside it")
    box.add_argument("--to", metavar="NAME", help="only for this person or group")
    box.add_argument("--limit", type=_count(1), default=50)
    yes = add(
        "approve",
        "let it be done",
        "holdfast approve my-run\nholdfast approve my-run --data '{\"amount\": 7}'",
        server,
        person,
        question,
    )
    yes.add_argument("--data", metavar="JSON", help="changed fields, where some may be edited")
    add("reject", "do not let it be done", "holdfast reject my-run --feedback 'too much'", server, person, question)
    words = add("answer", "answer a question", "holdfast answer my-run --choice blue", server, person, question)
    words.add_argument("--choice", metavar="NAME", help="one of the choices")
    words.add_argument("--data", metavar="JSON", help="what the form asks for")
    for name, summary in (("pause", "let nothing new begin in a run"), ("continue", "let a paused run go on")):
        held = add(name, summary, f"holdfast {name} my-run", server, person)
        held.add_argument("run", metavar="RUN")

    words = "the HTTP API and the console page, until Ctrl-C"
    serve = add("serve", words, "holdfast serve --flows flows", server, queue)
    serve.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, which needs no tokens")
    serve.add_argument("--port", type=int, default=8080, help="default: 8080, else a free one")
    serve.add_argument("--flows", metavar="FOLDER", help="flows in YAML that can be started by name")
    serve.add_argument("--tokens", metavar="FILE", help="a YAML list of {token, namespace, name}")
    serve.add_argument("--ui-url", help="the Temporal Web UI, for links")
    coding = add(
        "codec-server",
        "shows Temporal's Web UI and command line what payloads hold, until Ctrl-C",
        "holdfast codec-server --origin http://127.0.0.1:8233\n"
        "temporal workflow show --workflow-id my-run --codec-endpoint http://127.0.0.1:8081",
        common,
    )
    coding.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, which needs no tokens")
    coding.add_argument("--port", type=int, default=8081, help="default: 8081")
    coding.add_argument(
        "--origin",
        action="append",
        default=[],
        metavar="URL",
        help="a page that may ask, such as the Web UI (default: the embedded server's); repeatable",
    )
    coding.add_argument("--tokens", metavar="FILE", help="a YAML list of {token, namespace, name}")
    add("openapi", "the API's OpenAPI document", "holdfast openapi > openapi.json", common)

    cancel = add("cancel", "end a run; what it has done is kept", "holdfast cancel my-run", server)
    cancel.add_argument("run", metavar="RUN")

    check = add(
        "check", "find mistakes without running anything", "holdfast check examples/hello.yaml", common, loading
    )
    check.add_argument("flow", metavar="FLOW")

    simulate = add(
        "simulate",
        "run the flow's logic with scripted results, without a server",
        "holdfast simulate flow.yaml --script script.yaml\n\nscript.yaml:  fetch: {output: {n: 1}, seconds: 5}\n"
        "              send: {error: 'no route'}",
        common,
        giving,
    )
    simulate.add_argument("flow", metavar="FLOW")
    simulate.add_argument("--script", metavar="FILE", help="what each node that touches the world gives")

    add(
        "worker",
        "a worker for a Temporal server that runs elsewhere, until Ctrl-C",
        "holdfast worker --address temporal.example.org:7233 --load my_nodes",
        server,
        loading,
        queue,
    )

    add("stop", "stop what 'run --detach' left running", "holdfast stop", common)
    return top


def _days(text: str) -> float:
    try:
        if 0 <= (number := float(text)) <= 100_000:
            return number
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"not a number of days: {text!r}")


def _count(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            if (number := int(text)) >= least:
                return number
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"not a number from {least} on: {text!r}")

    return read


def _key(text: str) -> str:
    """Mostly a variable that was not set."""
    if not text:
        raise argparse.ArgumentTypeError("an empty one, which would be a new run each time")
    return text


_MODULES = {
    "dev": "dev",
    "stop": "dev",
    "worker": "dev",
    "run": "running",
    "resume": "travelling",
    "fork": "travelling",
    "rerun": "travelling",
    "diff": "families",
    "history": "families",
    "tree": "families",
    "export": "keeping",
    "import": "keeping",
    "delete": "keeping",
    "gc": "keeping",
    "check": "offline",
    "simulate": "offline",
    "runs": "looking",
    "show": "looking",
    "checkpoints": "looking",
    "checkpoint": "looking",
    "cancel": "looking",
    "watch": "watching",
    "inbox": "people",
    "approve": "people",
    "reject": "people",
    "answer": "people",
    "pause": "people",
    "continue": "people",
    "serve": "serving",
    "openapi": "serving",
    "codec-server": "serving",
}


def run() -> NoReturn:
    """The console script. Ends at once: the SDK's threads may still want the interpreter that would be taken down."""
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        code = 141  # Whoever reads, such as `head`, has seen enough. As a shell says it of others.
    sys.stderr.flush()
    os._exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    options = parser().parse_args(arguments)
    if options.version:
        from holdfast.checkpoints.models import LIBRARY_VERSION

        print(LIBRARY_VERSION)
        return 0
    if options.help or options.command is None:
        print(HELP, end="")
        return 0 if options.help else 2
    module = import_module(f"holdfast.starter.cli.{_MODULES[options.command]}")
    command: Callable[[argparse.Namespace], int] = getattr(module, f"{options.command.replace('-', '_')}_command")
    from holdfast.starter.cli.outcomes import guarded

    return guarded(command, options)
