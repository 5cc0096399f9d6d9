"""Invalid requests by call and field: values, search spaces, queries, and texts that are not a JSON object."""

import base64
import json
import math
from typing import Any

from tests.fakes import body

MISSING = object()  # removes the field
Values = dict[str, list[Any]]
HUGE = 10**400
NAN, INF = float("nan"), float("inf")  # written to JSON as NaN and Infinity, which many parsers accept
NO_NUMBER = ["1", "", [], {}, True, "NaN"]
NO_DURATION = ["", "soon", "5 parsecs", "-1h", "1e3h", "1h 30m 5x", [], {}, True, -1]
NO_TEXT = [1, 1.5, True, [], {}]
NO_NAME = [
    "",
    " ",
    "/",
    "..",
    "a/b",
    "a\\b",
    "-a",
    "_a",
    ".a",
    "a\tb",
    "a\r\nb",
    "a\u0000",
    "ä",
    "a\u202eb",
    "a" * 101,
]

FLOAT = {"type": "float", "low": 0.1, "high": 1.0}
CHOICE = {"type": "categorical", "choices": ["a", "b"]}

JOBS: Values = {
    "": [{}, [], None, "name", 1, [body()]],
    "/name": [*NO_NAME, *NO_TEXT, MISSING],
    "/trainable": [*NO_TEXT, "trainables", ":", "a:", ":b", "a:b:c", "../a:b", "/etc/passwd:x", "a b:c", MISSING],
    "/trainable#": ["os:system", "builtins:eval", "subprocess:run", "tuner.settings:Settings", "trainablesx:f", "Trainables.a:f"],
    "/objective": [*NO_TEXT[:3], "max", MISSING],
    "/objective/x": [1],
    "/objectives": [1, {}, [], [1], [{}], [{"metric": "acc", "mode": "max", "target": 2}], [{"metric": "acc"}] * 2, [{"metric": "acc"}, {"metric": " "}], [{"metric": "acc"}, {"metric": "x", "target": 1}], [{"metric": "acc"}, {"metric": "x"}, {"metric": "y"}]],
    "/objective/metric": ["", "\t", *NO_TEXT, MISSING],
    "/objective/mode": ["MAX", "", "maximize", 1, None, MISSING],
    "/objective/target": ["1", [], True, HUGE, NAN],
    "/search_space": [{}, *NO_TEXT, None, MISSING, {f"p{n}": {"type": "float", "low": 0, "high": 1} for n in range(1001)}],
    "/search_space/lr": [None, 1, "float", [], [0, 1], {}, {**FLOAT, "low": NAN}, {**FLOAT, "high": INF}, {"low": 0, "high": 1}, {**FLOAT, "type": "loguniform"}],
    "/search_space/lr/step": [1, 0.1, *NO_NUMBER],
    "/search_space/width/step": [0, -1, 2.5, "8", True, 57, 10**400],
    "/search_space/lr/low": [*NO_NUMBER, None, MISSING, 1, 2, 0, -1, HUGE, -HUGE, 1e308],
    "/search_space/lr/high": [*NO_NUMBER, None, MISSING],
    "/search_space/lr/log": ["yes", 1, 0, None, [], "true"],
    "/search_space/lr/when": [1, [], {"lr": [1]}, {"width": []}, {"width": [7]}, {"nobody": [1]}, {"width": 8}],
    "/search_space/width/low": [1.5, "8", True, None, 64, 65, 2**60],
    "/search_space/width/high": [1e20, "64", False, None, 8.5],
    "/fidelity": [1, [], "epoch", None],
    "/fidelity/maximum": [9],
    "/fidelity/unit": ["", "  ", *NO_TEXT, None],
    "/fidelity/min": [0, -1, 1.5, "1", True, None, HUGE, 2**63],
    "/fidelity/max": [0, -1, 1.5, "9", True, HUGE, 2**63],
    "/fidelity/reduction_factor": [0, 1, -3, 1.5, "3", True, None, 101, HUGE],
    "/budget": [{}, [], 1, "5 dollars", None, MISSING, {"usd": None}, {"trials": 5}, {"wall_clock": "1h"}, {"gpu_hours": 1}],
    "/budget/eur": [1],
    "/budget/usd": [0, -0.01, -1, 1e-7, 1e-300, 1e308, 1e30, HUGE, -HUGE, *NO_NUMBER, 0.0000015, 0.000001, NAN, INF],
    "/budget/gpu_hours": [0, -1, 1e308, HUGE, "1", True, [], NAN, -INF],
    "/budget/wall_clock": [*NO_DURATION, 0, "0s", "0", 1e300, HUGE, NAN],
    "/budget/trials": [0, -1, 1.5, "3", True, [], HUGE, 1_000_001],
    "/budget/on_exhausted": ["stop", "", None, 1, "FINISH"],
    "/resources": [1, [], "gpu", None],
    "/resources/memory": [1],
    "/resources/cpus": [0, -1, 1e-9, 1e308, HUGE, *NO_NUMBER, None, 3, 64, NAN],
    "/resources/gpus": [-1, 1.5, 1e-9, 1e308, HUGE, *NO_NUMBER, None, 1, INF],
    "/resources/nodes": [0, -1, 2, 65, 1.5, "1", True, HUGE, None],
    "/resources/processes_per_node": [0, -1, 1.5, "2", "all", True, HUGE, 257, None],
    "/resources/pack": [0, -1, 1.5, "2", "all", True, HUGE, 65, None],
    "/resources/market": ["", "cheap", "SPOT", 1, None],
    "/resources/instance_type": ["", "../x", 1, [], "p5.48xlarge\u0000"],
    "/resources/region": ["", "mars", 1, []],
    "/resources/max_concurrent_trials": [0, -1, 1.5, "1", True, HUGE, 10_001],
    "/algorithm": [1, "asha", [], None],
    "/algorithm/name": ["asha"],
    "/algorithm/scheduler": ["", "ASHA", "hyperband", 1, None],
    "/algorithm/sampler": ["", "TPE", "luck", 1, None],
    "/algorithm/seed": [1.5, "1", True, None, 2**63, -(2**63) - 1, HUGE],
    "/stop": [1, [], None],
    "/stop/epochs": [1],
    "/stop/plateau/steps": [1],
    "/stop/plateau": [1, [], {}, "1"],
    "/stop/plateau/patience_usd": [0, -1, "1", True, None, 1e308, HUGE],
    "/stop/plateau/min_gain": [-1, "0", True, None, NAN],
    "/stop/worth": [1, [], {}, "40"],
    "/stop/worth/usd": [1],
    "/stop/worth/usd_per_point": [0, -1, "1", True, None, 1e308, HUGE, NAN],
    "/stop/trial": [1, [], {}, {"min_gain": 1}],
    "/stop/trial/steps": [1],
    "/stop/trial/patience": [0, -1, 1.5, "1", True],
    "/stop/trial/min_gain": [-1, "0", True, None, NAN],
    "/stop/trial/max_duration": [*NO_DURATION, 0, "0s"],
    "/stop/trial/max_cost_usd": [0, -1, "1", True, 1e308],
    "/confirm": [1, [], "yes"],
    "/confirm/best": [3],
    "/confirm/candidates": [0, -1, 1.5, "3", True, None, 21, HUGE],
    "/confirm/seeds": [0, 1, 1.5, "3", True, None, 21, HUGE],
    "/start": [None, 1, {}, "best-of:job_0", [1], [None], [[]], [{}], [{"lr": 0.1}], [{"config": {"lr": 0.1}, "metric": 1}], [{"config": 1}]],
    "/constraints": [None, 1, {}, [1], [{}], [{"metric": "x"}], [{"metric": "", "max": 1}], [{"metric": "x", "min": 2, "max": 1}], [{"metric": "x", "max": NAN}], [{"metric": "x", "max": 1}] * 2, [{"metric": f"x{i}", "max": 1} for i in range(21)]],
    "/checkpoint": [1, [], None, "auto"],
    "/checkpoint/every": [1],
    "/checkpoint/interval": [*NO_DURATION, 0, "0m", None, HUGE],
    "/checkpoint/keep": [0, -1, 1.5, "2", True, None, 1001, HUGE],
    "/artifacts": [1, [], "best"],
    "/artifacts/keep": ["best"],
    "/artifacts/retain": ["", "BEST", "some", 1, None],
    "/artifacts/for": [*NO_DURATION, 0, "0d", HUGE],
    "/warm_start/job": [[]],
    "/warm_start/jobs": [1, "job_0", [1], ["job_0000000000000000"], ["../job"], ["x"] * 1000],
    "/warm_start/checkpoints": ["yes", 1, None],
    "/teacher": [1, [], {}, "best"],
    "/teacher/step": ["1", 1.5],
    "/teacher/trial": [1, None],
    "/teacher/job": [1, None, "job_0", "job_0000000000000000", "../job"],
    "/window": [1, [], {}, {"start": "22:00"}],
    "/window/day": [1],
    "/window/end": ["22:00"],
    "/window/start": ["", "24:00", "22", "22:60", "-1:00", "22:00:00", "٢٢:٠٠", 22, None],
    "/window/timezone": ["", "Mars/Base", "Europe/Berln", "../etc/localtime", "/etc/localtime", "Europe/../UTC", "UTC\u0000", 1, None],
    "/constants": [[], 1, "a", None, {"lr": 1}, {"a": "b" * 100_001}, {"a": [1, {"b": NAN}]}, {"a": ["b\0"]}, {"a\0": 1}],
    "/priority": [1001, -1001, 1.5, "1", True, None, HUGE],
    "/tags": [[], 1, "a:b", None, {"a": 1}, {"a": None}, {"": "b"}, {"a:b": "c"}, {"a" * 101: "b"}, {"a": "b" * 301}, {str(n): "" for n in range(51)}],
    "/colour": [1],
    "/__proto__": [{"usd": 1}],
    "/budget/__class__": ["x"],
}  # fmt: skip

# Search spaces, by the pointer that the error must have.
SPACES: dict[str, list[dict[str, Any]]] = {
    "/search_space/lr/low": [{"lr": {**FLOAT, "low": 2.0}}, {"lr": {**FLOAT, "low": 1.0}}, {"lr": {**FLOAT, "low": -1.0, "log": True}}],
    "/search_space/a~1b/low": [{"a/b": {**FLOAT, "low": 2.0}}],
    "/search_space/lr/high": [{"lr": {**FLOAT, "high": HUGE}}, {"lr": {**FLOAT, "low": -1.7e308, "high": 1.7e308}}],
    "/search_space/n/low": [{"n": {"type": "int", "low": 0, "high": 9, "log": True}}, {"n": {"type": "int", "low": 0.5, "high": 9}}],
    "/search_space/n": [{"n": {"type": "int", "low": 0, "high": high}} for high in (2**53 + 1, HUGE)],
    "/search_space/x/step": [{"x": {**FLOAT, "low": 0.0, "high": 1.0, "step": step}} for step in (0, -0.5, 1.5, NAN, HUGE, 1e-300)],
    "/search_space/o/choices": [{"o": {**CHOICE, "choices": choices}} for choices in list[list[Any]](([], ["a", "a"], [NAN], [*range(1001)], [[]] * 1001))],
    "/search_space/o/choices/0": [{"o": {**CHOICE, "choices": [[1]]}}],
    "/search_space/lr/when/o": [
        {"lr": {**FLOAT, "when": {"o": ["a"]}}},
        {"o": CHOICE, "lr": {**FLOAT, "when": {"o": ["c"]}}},
        {"o": CHOICE, "lr": {**FLOAT, "when": {"o": []}}},
        {"o": {**CHOICE, "choices": [1, 2]}, "lr": {**FLOAT, "when": {"o": [True]}}},
        {"o": CHOICE, "lr": {**FLOAT, "when": {"o": ["a"] * 1001}}},
        {"o": CHOICE, "lr": {**FLOAT, "when": {"o": [[]] * 1001}}},
    ],
    "/search_space/lr/when": [{"lr": {**FLOAT, "when": {"lr": [0.5]}}}],
    "/search_space/b/when": [{"a": {**CHOICE, "when": {"b": ["a"]}}, "b": {**CHOICE, "when": {"a": ["a"]}}}],
}  # fmt: skip

BUDGETS: Values = {
    "": [{}, [], None, 1, {"period": "day"}],
    "/usd": [0, -1, 1e-7, 1e308, HUGE, *NO_NUMBER],
    "/gpu_hours": [0, -1, 1e308, HUGE, "1", True],
    "/match": [[], 1, {"a": 1}, {"": "b"}, {"a:b": "c"}, None],
    "/period": ["year", "", 1, "DAY"],
    "/timezone": ["", "Mars/Base", "../UTC", "/etc/localtime", 1, None],
    "/parent": ["nobody", "", "../b", 1, "bad"],
    "/alerts": [{}, 1, "https://e.com", None],
    "/alerts/0": [1, {}, {"at": 0.5}, {"url": "https://example.com"}],
    "/alerts/0/at": [0, -0.1, 1.1, "half", True, None, HUGE],
    "/alerts/0/url": ["", "x", "//e.com", "ftp://e.com", "file:///etc/passwd", "javascript:1", "https://", "https://u:p@e.com/", 1, None],
    "/new_secret": ["yes", 1, None],
    "/name": ["b"],
}  # fmt: skip

PLANS: Values = {
    "/planning": [1, [], None],
    "/planning/step_seconds": [0, -1, 1e300, HUGE, "1", True],
    "/planning/step_spread": [-0.1, 4, "1", True],
    "/planning/setup_seconds": [-1, 1e300, "1"],
    "/planning/steps": [0, -1, 1.5, HUGE, "1"],
    "/planning/steps_from": [1, "job_0", [1], ["x"] * 1000],
    "/planning/deadline": [*NO_DURATION, "2001-01-01T00:00:00Z", "2026-13-01T00:00:00Z", HUGE],
    "/planning/candidates": [1, {}, [1], [{}]],
    "/planning/catalogue": [1, [], {"cloud": "mars"}, {"clouds": "aws"}],
    "/planning/needs": [1, {"memory": 1}, {"memory_gib": "1"}],
    "/planning/speeds": [1, [], {"a": "fast"}, {"a": 0}, {f"t{n}": 1 for n in range(101)}],
    "/planning/markets": [1, "spot", ["futures"], ["spot"] * 11],
    "/planning/seed": [1.5, "1", None],
    "/planning/horoscope": ["lucky"],
}  # fmt: skip

PILOTS: Values = {
    "/planning": [{}, None, MISSING],
    "/planning/pilot": [1, [], {}, None, {"steps": 2}],
    "/planning/pilot/usd": [0, -1, 1e-7, 1e308, HUGE, *NO_NUMBER, 0.004],
    "/planning/pilot/trials": [0, -1, 1.5, "1", True, HUGE],
    "/planning/pilot/steps": [0, -1, 1.5, "1", True, HUGE],
    "/planning/pilot/eur": [1],
    "/search_space": [{}],
    "/budget/usd": [-1],
    "/resources/cpus": [64],
}  # fmt: skip

ESTIMATES: Values = {
    "": [{}, [], None, 1, {"run": None}],
    "/run": [1, [], {}],
    "/run/hours": [0, -1, 1e7, HUGE, *NO_NUMBER, 72],
    "/run/samples": [0, -1, 1e31, HUGE, *NO_NUMBER],
    "/run/epochs": [0, -1, HUGE, "1", None],
    "/run/utilisation": [0, 1.1, "1"],
    "/run/gpus": [-1, 1.5, 65537, "some", True, HUGE],
    "/run/deadline": [*NO_DURATION, 0, "2001-01-01T00:00:00Z"],
    "/run/markets": [[], ["futures"], "spot"],
    "/run/throughput/0/per_second": [0, -1, HUGE, *NO_NUMBER, None, MISSING],
    "/run/throughput/0/accelerator": ["", "a" * 101, 1, "no such thing"],
    "/run/spot/wait": ["soon", -1, True],
    "/run/limit": [0, -1, 5001, 1.5, "1", None],
    "/colour": [1],
}  # fmt: skip

QUOTAS: Values = {
    "": [[], None, 1, "none"],
    "/usd": [0, -1, 1e-7, 1e308, HUGE, *NO_NUMBER],
    "/gpu_hours": [0, -1, 1e308, HUGE, "1", True],
    "/period": ["year", "", 1, "DAY"],
    "/timezone": ["", "Mars/Base", "../UTC", "/etc/localtime", 1, None],
    "/concurrent_jobs": [0, -1, 1.5, "1", True, HUGE, 1_000_001],
    "/concurrent_trials": [0, -1, 1.5, "1", True, HUGE, 1_000_001],
    "/colour": [1],
}  # fmt: skip

MEMBERS: Values = {
    "": [{}, [], None, 1, "viewer"],
    "/role": [*NO_TEXT, None, MISSING, "", "boss", "operator", "ADMIN", "viewer ", "admin,viewer"],
    "/colour": [1],
}  # fmt: skip

PROJECTS: Values = {
    "": [{}, [], None, 1, "another"],
    "/name": [*NO_NAME, *NO_TEXT, None, MISSING, "Upper", "a" * 64, "a.b"],
    "/role": ["admin"],
}  # fmt: skip

RUN = {"samples": 1e6, "throughput": [{"per_second": 100.0, "accelerator": "A100"}], "spot": {}}
ALERTING = {"usd": 1, "alerts": [{"at": 0.5, "url": "https://example.com/hook"}]}
PILOT = body(planning={"pilot": {"usd": 0.0005}})
# Method, path, a valid body, and the invalid values for its fields.
CALLS: dict[str, tuple[str, str, dict[str, Any], Values]] = {
    "jobs": ("POST", "/v1/jobs", body(stop={"plateau": {"patience_usd": 1}}, window={"start": "22:00", "end": "06:00"}), JOBS),
    "plans": ("POST", "/v1/plans", body(planning={"step_seconds": 1.0}), PLANS),
    "pilots": ("POST", "/v1/pilots", PILOT, PILOTS),
    "budgets": ("PUT", "/v1/budgets/bad", ALERTING, BUDGETS),
    "estimates": ("POST", "/v1/estimates", {"run": RUN}, ESTIMATES),
    "members": ("PUT", "/v1/members/alice", {"role": "viewer"}, MEMBERS),
    "projects": ("POST", "/v1/projects", {"name": "another"}, PROJECTS),
    "quota": ("PUT", "/v1/quota", {"usd": 1, "period": "day"}, QUOTAS),
}  # fmt: skip


def coded(value: Any) -> str:
    """Return the text of a cursor with this content."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


CURSORS = [
    "",
    "x",
    "%",
    "=",
    "é",
    "%00",
    "../..",
    *map(coded, ([], {}, "a", ["a", "b", "c"], None, {"a": 1}, [math.nan, "a"])),
]
# Invalid query values by path and parameter. The error must name the parameter.
QUERIES: dict[str, dict[str, list[str]]] = {
    "/v1/jobs": {
        "state": ["", "RUNNING", "lost", "queued,running", "' or 1=1 --"],
        "tag": ["", "a", ":", ":b", "a b", "a:\0"],
        "limit": ["0", "-1", "501", "1.5", "ten", "", "1e2", "0x10", "9" * 400],
        "cursor": [*CURSORS, *map(coded, ([2**63, "job"], [True, "job"], [0, "\ud800"], [0, "a\0"])), base64.urlsafe_b64encode(b"[" * 6_000).decode()],
    },
    "/v1/jobs/JOB/trials": {"sort": ["", "name", "--number", "number;drop"], "limit": ["0", "501"], "cursor": [*CURSORS, *map(coded, ([["a"]], [1], [2**63, 0], [0, 2**63], [0.5, False]))]},
    "/v1/jobs/JOB/ledger": {"limit": ["0", "10001", "-1", "nan"], "cursor": [*CURSORS, *map(coded, ([None], ["1"], [True], [2**63]))]},
    "/v1/jobs/JOB/best": {
        "max_cost_usd": ["-1", "nan", "inf", "-inf", "1e10", "1e308", "", "much", "1,5"],
        "max_gpu_hours": ["-1", "nan", "inf", "1e10", "x"],
        "max_duration": ["", "-1h", "soon", "1e400", "nan"],
        "forecast": ["maybe", "", "2"],
        "market": ["futures", "x" * 101],
    },
    "/v1/jobs/JOB/events": {"after": ["-1", "1.5", "x", "9" * 30]},
    "/v1/jobs/JOB/exports/export_00001": {"requests_per_second": ["0", "-1", "nan", "inf", "x"], "start": ["", "soon", "-1s", "nan"]},
    "/v1/jobs/JOB/trials/trial_00000/checkpoint": {"step": ["0", "-1", "x", "1.5", "9" * 20]},
    "/v1/jobs/JOB/trials/trial_00000/logs": {"attempt": ["0", "-1", "x", "9" * 20], "tail": ["0", "-1", "1e9", "524289"], "after": ["-1", "x"]},
    "/v1/spend": {
        "group_by": ["", "nobody", "tag:", "day;drop table jobs", "__class__"],
        "since": ["", "yesterday", "2026-13-01", "2026-02-30", "9" * 30],
        "until": ["", "now", "0000-00-00"],
        "timezone": ["", "Mars/Base", "../../etc/passwd", "/etc/localtime", "UTC\u0000"],
    },
    "/v1/prices": {"cloud": ["mars"], "market": ["futures", ""], "limit": ["0", "10001", "x"], "accelerator": ["no such thing"]},
}  # fmt: skip

# Whole bodies that are not a JSON object, or do not match their content type: content and type.
JSON = "application/json"
TEXTS: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", JSON),
    "NUL": (b"\x00", JSON),
    "half a null": (b"nul", JSON),
    "cut off": (b'{"name": "a', JSON),
    "cut off behind a comma": (b'{"name": "a",', JSON),
    "two objects": (b"{}{}", JSON),
    "a comment": (b'{"name": "a"} // b', JSON),
    "single quotes": (b"{'name': 'a'}", JSON),
    "a comma too many": (b'{"name": "a",}', JSON),
    "no UTF-8": (b'{"name": "\xff\xfe"}', JSON),
    "UTF-8 of a surrogate": (b'{"name": "\xed\xa0\x80"}', JSON),
    "an overlong slash": (b'{"name": "\xc0\xaf"}', JSON),
    "a control character in text": (b'{"name": "a\x01b"}', JSON),
    "a raw line break in text": (b'{"name": "a\nb"}', JSON),
    "a bad escape": (b'{"name": "\\x41"}', JSON),
    "half an escape": (b'{"name": "\\u12"}', JSON),
    "a hexadecimal number": (b'{"priority": 0x10}', JSON),
    "a number with a plus": (b'{"priority": +1}', JSON),
    "a number that begins with 0": (b'{"priority": 01}', JSON),
    "an unquoted key": (b"{name: 1}", JSON),
    "brackets without end": (b"[" * 100_000, JSON),
    "braces without end": (b'{"a":' * 100_000, JSON),
    "constants too deep": (b'{"constants": {"a": ' + b"[" * 31 + b"]" * 31 + b"}}", JSON),
    "a number of 5000 digits": (b'{"priority": ' + b"1" * 5000 + b"}", JSON),
    "a form": (b"name=a&budget=1", "application/x-www-form-urlencoded"),
    "XML": (b"<!DOCTYPE a [<!ENTITY x SYSTEM 'file:///etc/passwd'>]><a>&x;</a>", "application/xml"),
    "YAML": (b"name: a", "application/yaml"),
    "YAML with code": (b"!!python/object/apply:os.system ['true']", "application/x-yaml"),
    "pickled": (b"cos\nsystem\n(S'true'\ntR.", "application/octet-stream"),
    "JSON as text": (b"{}", "text/plain"),
    "JSON as nothing": (b"{}", ""),
    "JSON of a type that is none": (b"{}", "json"),
    "several parts": (b"--x\r\n\r\n{}\r\n--x--", "multipart/form-data; boundary=x"),
    "packed": (b"\x1f\x8b\x08\x00", JSON),
}  # fmt: skip

# Duplicate names, as text that replaces `"@"` in a field, and the expected pointer.
TWICE: dict[str, tuple[str, str, str]] = {
    "two budgets": ("budget", '{"usd": 0.004}, "budget": {"usd": 4000}', "/budget"),
    "two sums": ("budget", '{"usd": 0.004, "usd": 4000}', "/budget/usd"),
    "two sums that are one": ("budget", '{"usd": 0.004, "usd": 0.004}', "/budget/usd"),
    "two sums, one escaped": ("budget", '{"usd": 0.004, "\\u0075sd": 4000}', "/budget/usd"),
    "two trainables": ("trainable", '"a:b", "trainable": "trainables.digits_mlp:train"', "/trainable"),
    "two bounds": ("search_space", '{"lr": {"type": "float", "low": 0, "high": 1, "high": 2}}', "/search_space/lr/high"),
    "two parameters": ("search_space", '{"a/b": {"type": "float", "low": 0, "high": 1}, "a/b": 1}', "/search_space/a~1b"),
    "two in a list": ("constants", '{"a": [1, {"b": 1, "b": 2}]}', "/constants/a/1/b"),
    "two owners": ("tags", '{"owner": "a", "owner": "b"}', "/tags/owner"),
    "two of no name": ("constants", '{"": 1, "": 2}', "/constants/"),
}  # fmt: skip
