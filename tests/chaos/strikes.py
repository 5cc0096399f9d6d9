"""Apply each fault to a deployment, and undo it."""

import re
import signal
from collections.abc import Callable
from typing import NamedTuple, get_args

from tests.chaos.deployment import Deployment, send
from tests.chaos.plan import Strike
from tests.chaos.proxy import Harm
from tests.system.serving import line

JUMP_S = 300
NOTICE_S = 3


class Done(NamedTuple):
    """The result of a strike. `victim` is empty if none was found. `end` undoes the fault."""

    victim: str
    end: Callable[[], object] = lambda: None
    of_job: str = ""


NOBODY = Done("")


def strike(at: Deployment, what: Strike) -> Done:
    verb, _, rest = what.fault.name.partition(" ")
    match verb:
        case "kill" | "stop" | "restart":
            return _process(at, what, verb, rest)
        case "drain":
            return _drain(at, what)
        case "disk":
            at.disk.fill()
            return Done("the disk", at.disk.free)
        case "clock":
            jumped = at.clock.jump(JUMP_S if rest == "forward" else -JUMP_S)
            return Done("the clock", lambda: at.clock.jump(0)) if jumped else NOBODY
    return _connection(at, what, verb, rest)


def _process(at: Deployment, what: Strike, verb: str, kind: str) -> Done:
    victims = at.victims(kind)
    if not victims:
        return NOBODY
    victim = victims[int(what.draw * len(victims))]
    words = line(victim)
    job = re.search(r"job_[0-9a-f]+", words) if kind == "driver" else None
    done = Done(f"{victim.pid}: {words[:100]}", of_job=job[0] if job else "")
    if verb == "restart":
        # PostgreSQL's fast shutdown (SIGINT), or an orderly shutdown of our processes (SIGTERM).
        send([victim], signal.SIGINT if kind == "database" else signal.SIGTERM)
        return done
    family = at.with_it(kind, victim)
    if verb == "kill":
        send(family, signal.SIGKILL)
        return done
    send(family, signal.SIGSTOP)
    return done._replace(end=lambda: send(family, signal.SIGCONT))


def _drain(at: Deployment, what: Strike) -> Done:
    nodes = at.nodes()
    if not nodes:
        return NOBODY
    node = nodes[int(what.draw * len(nodes))]
    at.preempt(node, NOTICE_S)
    return Done(node)


def _connection(at: Deployment, what: Strike, part: str, harm: str) -> Done:
    behind = at.database if part == "database" else at.storage
    if behind is None:
        return NOBODY
    if harm.startswith("answers"):
        assert at.storage is not None
        at.storage.answer(int(harm.split()[1]))
        return Done("storage", at.storage.heal)
    assert harm in get_args(Harm)
    behind.proxy.harm(harm, delay_s=0.2 + 1.8 * what.draw, after_bytes=int(20_000 * what.draw))  # type: ignore[arg-type]
    return Done(f"connections to the {part}", behind.proxy.heal)
