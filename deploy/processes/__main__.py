"""Run the deployment of deploy/compose without containers, as processes of one Linux machine. See README.md.

python -m deploy.processes up
"""

import argparse
import contextlib
import difflib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from deploy.processes.checks import faults_of_machine, faults_of_network, faults_of_places
from deploy.processes.compose import Project, Refused
from deploy.processes.folder import Folder
from deploy.processes.manager import UP_WITHIN_S, Failed, ProcessManager
from deploy.processes.parts import RAY_PORT, not_run, parts_of
from tuner.settings import write_private

STATE = Path("~/.tuner-processes")
NETWORK = "127.77.0"
# Two, so that one can be killed.
DEFAULTS = {"REPLICAS": "2"}


def main(words: Sequence[str] | None = None) -> int:
    args = parser().parse_args(words)
    try:
        args.run(args)
    except Refused as refused:
        print("nothing was started:", *(f"- {fault}" for fault in refused.faults), sep="\n", file=sys.stderr)
        return 1
    except (Failed, CommandError) as failed:
        print(failed, file=sys.stderr)
        return 1
    return 0


class CommandError(Exception):
    """The command is not possible now."""


def parser() -> argparse.ArgumentParser:
    main_parser = argparse.ArgumentParser(prog="python -m deploy.processes", description=__doc__)
    commands = main_parser.add_subparsers(required=True, metavar="command")
    up = commands.add_parser("up", help="start all parts, and stop them on Ctrl-C or SIGTERM")
    up.add_argument(
        "--network", default=NETWORK, help=f"first three numbers of the addresses (default: {NETWORK})"
    )
    up.add_argument(
        "--ray-port",
        type=_port,
        default=RAY_PORT,
        help=f"port of Ray's head, opened at all addresses (default: {RAY_PORT})",
    )
    up.set_defaults(run=run_up)
    for name, run, what in (
        ("kill", run_kill, "kill a part with SIGKILL, such as spot-worker or tuner-1"),
        ("start", run_start, "start a killed part again, and wait until it is healthy"),
    ):
        command = commands.add_parser(name, help=what)
        command.add_argument("part")
        command.set_defaults(run=run)
    down = commands.add_parser("down", help="stop the deployment, or the processes that a killed one left")
    down.set_defaults(run=run_down)
    for command in commands.choices.values():
        command.add_argument(
            "--state", type=Path, default=STATE, help=f"folder of the deployment (default: {STATE})"
        )
    return main_parser


def _port(text: str) -> int:
    if not text.isdecimal() or not 1024 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 1024 to 65535")
    return int(text)


def run_up(args: argparse.Namespace) -> None:
    folder = Folder(args.state)
    if faults := [*faults_of_machine(), *faults_of_network(args.network), *folder.faults()]:
        raise Refused(*faults)
    with folder.locked():
        if killed := folder.clear():
            _say(f"ended {killed} processes that an earlier deployment had left")
        has_failed = False
        try:
            _run_parts(args, folder)
        except Failed as failed:
            has_failed = True
            raise Failed(f"{failed}\nall logs are in {folder.logs}") from failed
        finally:
            folder.clear(keep_logs=has_failed)
            folder.unlock()


def _run_parts(args: argparse.Namespace, folder: Folder) -> None:
    values = {**DEFAULTS, **os.environ, **folder.create()}
    project = Project(values, args.network, moved={("ray-head", RAY_PORT): args.ray_port})
    for name, text in project.secrets.items():
        write_private(folder.secrets / name, project.at_addresses(text))
    write_private(folder.api_key, f"{values['TUNER_API_KEY']}\n")
    parts = parts_of(project, folder)
    if faults := list(faults_of_places(parts, args.ray_port)):
        raise Refused(*faults)
    manager = ProcessManager(parts, folder, Path.cwd(), _say)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: manager.stop())
    try:
        took_s = manager.start_all()
        if took_s is not None:
            _print_addresses(project, folder, took_s)
            manager.run()
    finally:
        _say("stopping all parts")
        manager.end()


def _print_addresses(project: Project, folder: Folder, took_s: float) -> None:
    services = [f"http://{address}:8000" for address in project.addresses("tuner")]
    write_private(
        folder.client, f'export TUNER_URL={services[0]}\nexport TUNER_API_KEY="$(cat "{folder.api_key}")"\n'
    )
    lines = {
        "REST and page": ", ".join(services),
        "Prometheus": f"http://{project.addresses('prometheus')[0]}:9090",
        "Ray's dashboard": f"http://{project.addresses('ray-head')[0]}:8265",
        "key": str(folder.api_key),
        "logs": str(folder.logs),
    }
    _say(f"all parts are up after {took_s:.1f} s")
    for name, text in lines.items():
        _say(f"  {name:<16} {text}")
    for text in not_run(project):
        _say(f"  not run: {text}")
    _say(f"submit with `. {folder.client}` first; Ctrl-C stops all parts")


def run_kill(args: argparse.Namespace) -> None:
    folder = _running(args)
    count = folder.kill_part(args.part)
    _say(f"{args.part} was killed ({count} processes); `start {args.part}` starts it again")


def run_start(args: argparse.Namespace) -> None:
    folder = _running(args)
    if not folder.is_away(args.part):
        raise CommandError(f"{args.part} was not killed")
    # Wait until the manager has noticed it. Until then the recorded state is still healthy.
    _until(folder, args.part, ("away",))
    folder.allow_start(args.part)
    _until(folder, args.part, ("healthy", "done"))
    _say(f"{args.part} is healthy after {folder.state()['parts'][args.part]['took_s']:.1f} s")


def _until(folder: Folder, part: str, states: tuple[str, ...]) -> None:
    deadline = time.monotonic() + UP_WITHIN_S
    while folder.state()["parts"][part]["state"] not in states:
        if not folder.is_locked() or time.monotonic() > deadline:
            raise CommandError(f"{part} does not become healthy: see {folder.log(part)}")
        time.sleep(0.1)


def _running(args: argparse.Namespace) -> Folder:
    """Return the folder of the running deployment.

    Raises:
        CommandError: No deployment runs in the folder, or it has no such part.
    """
    folder = Folder(args.state)
    parts = folder.state().get("parts", {}) if folder.is_locked() else {}
    if not parts:
        raise CommandError(
            f"no deployment runs in {folder.path}: start one with `up`, or name its folder with --state"
        )
    if args.part not in parts:
        near = difflib.get_close_matches(args.part, parts, n=3, cutoff=0.3) or list(parts)
        raise CommandError(f"{args.part} is not a part of the deployment; did you mean {', '.join(near)}?")
    return folder


def run_down(args: argparse.Namespace) -> None:
    folder = Folder(args.state)
    if owner := folder.owner():
        with contextlib.suppress(ProcessLookupError):
            os.kill(owner, signal.SIGTERM)
        if not folder.wait_until_unlocked(60.0):
            raise CommandError(f"process {owner} does not end: kill it, and run `down` again")
        return
    if faults := folder.faults():
        raise Refused(*faults)
    if not folder.path.exists():
        _say(f"{folder.path} does not exist, so no deployment is left")
        return
    with folder.locked():
        _say(f"ended {folder.clear()} processes that were left")
        folder.unlock()


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
