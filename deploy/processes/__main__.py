"""The deployment of deploy/compose without containers: its services as processes of one Linux machine. See README.md.

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
from deploy.processes.keeper import UP_WITHIN_S, Failed, Keeper
from deploy.processes.parts import RAY_PORT, not_run, parts_of
from tuner.settings import write_private

STATE = Path("~/.tuner-processes")
NETWORK = "127.77.0"
# Two, so that one can be taken away.
DEFAULTS = {"REPLICAS": "2"}


def main(words: Sequence[str] | None = None) -> int:
    args = parser().parse_args(words)
    try:
        args.run(args)
    except Refused as refused:
        print("nothing was started:", *(f"- {fault}" for fault in refused.faults), sep="\n", file=sys.stderr)
        return 1
    except (Failed, Mistake) as failed:
        print(failed, file=sys.stderr)
        return 1
    return 0


class Mistake(Exception):
    """A command that cannot be done now."""


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m deploy.processes", description=__doc__)
    commands = found.add_subparsers(required=True, metavar="command")
    up = commands.add_parser("up", help="bring all up, and stay until Ctrl-C or SIGTERM ends all of it")
    up.add_argument("--network", default=NETWORK, help=f"first three numbers of its addresses: {NETWORK}")
    up.add_argument(
        "--ray-port", type=_port, default=RAY_PORT, help=f"of Ray's head, at all addresses: {RAY_PORT}"
    )
    up.set_defaults(run=run_up)
    for name, run, what in (
        ("kill", run_kill, "take a part away, with SIGKILL, such as spot-worker or tuner-1"),
        ("start", run_start, "start a part again that was taken away, and wait until it is healthy"),
    ):
        one = commands.add_parser(name, help=what)
        one.add_argument("part")
        one.set_defaults(run=run)
    down = commands.add_parser("down", help="end all of it, or what a killed one has left")
    down.set_defaults(run=run_down)
    for one in commands.choices.values():
        one.add_argument("--state", type=Path, default=STATE, help=f"folder of the deployment: {STATE}")
    return found


def _port(text: str) -> int:
    if not text.isdecimal() or not 1024 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port from 1024 to 65535")
    return int(text)


def run_up(args: argparse.Namespace) -> None:
    folder = Folder(args.state)
    if faults := [*faults_of_machine(), *faults_of_network(args.network), *folder.faults()]:
        raise Refused(*faults)
    with folder.kept():
        if killed := folder.clear():
            _say(f"ended {killed} processes that an earlier deployment had left")
        has_failed = False
        try:
            _keep(args, folder)
        except Failed as failed:
            has_failed = True
            raise Failed(f"{failed}\nall logs are in {folder.logs}") from failed
        finally:
            folder.clear(keep_logs=has_failed)
            folder.leave()


def _keep(args: argparse.Namespace, folder: Folder) -> None:
    values = {**DEFAULTS, **os.environ, **folder.make()}
    project = Project(values, args.network, moved={("ray-head", RAY_PORT): args.ray_port})
    for name, text in project.secrets.items():
        write_private(folder.secrets / name, project.at_addresses(text))
    write_private(folder.api_key, f"{values['TUNER_API_KEY']}\n")
    parts = parts_of(project, folder)
    if faults := list(faults_of_places(parts, args.ray_port)):
        raise Refused(*faults)
    keeper = Keeper(parts, folder, Path.cwd(), _say)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: keeper.stop())
    try:
        took_s = keeper.start_all()
        if took_s is not None:
            _tell(project, folder, took_s)
            keeper.keep()
    finally:
        _say("ending all of it")
        keeper.end()


def _tell(project: Project, folder: Folder, took_s: float) -> None:
    services = [f"http://{address}:8000" for address in project.addresses("tuner")]
    write_private(
        folder.client, f'export TUNER_URL={services[0]}\nexport TUNER_API_KEY="$(cat "{folder.api_key}")"\n'
    )
    told = {
        "REST and page": ", ".join(services),
        "Prometheus": f"http://{project.addresses('prometheus')[0]}:9090",
        "Ray's dashboard": f"http://{project.addresses('ray-head')[0]}:8265",
        "key": str(folder.api_key),
        "logs": str(folder.logs),
    }
    _say(f"all is up after {took_s:.1f} s")
    for name, text in told.items():
        _say(f"  {name:<16} {text}")
    for text in not_run(project):
        _say(f"  not run: {text}")
    _say(f"submit with `. {folder.client}` first; Ctrl-C ends all of it")


def run_kill(args: argparse.Namespace) -> None:
    folder = _running(args)
    count = folder.take_away(args.part)
    _say(f"{args.part} is gone, {count} processes; `start {args.part}` brings it back")


def run_start(args: argparse.Namespace) -> None:
    folder = _running(args)
    if not folder.is_away(args.part):
        raise Mistake(f"{args.part} was not taken away")
    # The keeper has to have seen that it is, or it would look healthy still.
    _until(folder, args.part, ("away",))
    folder.bring_back(args.part)
    _until(folder, args.part, ("healthy", "done"))
    _say(f"{args.part} is back after {folder.state()['parts'][args.part]['took_s']:.1f} s")


def _until(folder: Folder, part: str, states: tuple[str, ...]) -> None:
    deadline = time.monotonic() + UP_WITHIN_S
    while folder.state()["parts"][part]["state"] not in states:
        if not folder.is_kept() or time.monotonic() > deadline:
            raise Mistake(f"{part} does not come up: see {folder.log(part)}")
        time.sleep(0.1)


def _running(args: argparse.Namespace) -> Folder:
    """The deployment, where it has such a part."""
    folder = Folder(args.state)
    parts = folder.state().get("parts", {}) if folder.is_kept() else {}
    if not parts:
        raise Mistake(
            f"no deployment runs in {folder.path}: start one by `up`, or name its folder by --state"
        )
    if args.part not in parts:
        near = difflib.get_close_matches(args.part, parts, n=3, cutoff=0.3) or list(parts)
        raise Mistake(f"there is no {args.part}: {', '.join(near)}")
    return folder


def run_down(args: argparse.Namespace) -> None:
    folder = Folder(args.state)
    if keeper := folder.keeper():
        with contextlib.suppress(ProcessLookupError):
            os.kill(keeper, signal.SIGTERM)
        if not folder.wait_until_left(60.0):
            raise Mistake(f"process {keeper} does not end: kill it, and say `down` again")
        return
    if faults := folder.faults():
        raise Refused(*faults)
    if not folder.path.exists():
        _say(f"there is nothing in {folder.path}")
        return
    with folder.kept():
        _say(f"ended {folder.clear()} processes that were left")
        folder.leave()


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
