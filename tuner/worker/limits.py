"""Limits on the processes, files and environment variables of user code."""

import ctypes
import json
import os
import resource
import tempfile
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Literal, Self

from tuner.domain.environment import HASH_SEED
from tuner.domain.units import GIB
from tuner.training.datasets import CACHE_DIR, CACHE_GIB, DEFAULT_GIB
from tuner.worker.process_tree import descendants, proportional_bytes, resource_use

ALLOWED_ENV = frozenset(
    """
    PATH HOME USER LOGNAME LANG LANGUAGE TZ TZDIR TMPDIR VIRTUAL_ENV CONDA_PREFIX LD_LIBRARY_PATH LIBRARY_PATH CPATH CC CXX
    PYTHONHASHSEED TOKENIZERS_PARALLELISM XDG_CACHE_HOME HF_HOME HF_HUB_CACHE HF_DATASETS_CACHE HF_ENDPOINT HF_HUB_OFFLINE
    HF_DATASETS_OFFLINE TRANSFORMERS_CACHE TRANSFORMERS_OFFLINE SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE
    NO_PROXY no_proxy MALLOC_ARENA_MAX LOKY_MAX_CPU_COUNT
    """.split()  # noqa: SIM905
)
ALLOWED_PREFIXES = tuple(
    """
    LC_ NVIDIA_ CUDA_ CUDNN_ CUBLAS_ NCCL_ GLOO_ UCX_ FI_ PYTORCH_ TORCH_ TORCHINDUCTOR_ TRITON_ XLA_ JAX_ TF_ HIP_ HSA_ ROCR_
    TPU_ OMP_ GOMP_ KMP_ MKL_ OPENBLAS_ NUMEXPR_ NUMBA_
    """.split()  # noqa: SIM905
)
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
SECRETS = ("TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "API_KEY", "ACCESS_KEY")
OURS = "TUNER_USER_"  # prefix of variables that an operator sets for trainables
PR_SET_NO_NEW_PRIVS = 38
MAX_LEVELS = 32  # of nested values in a suggested search space or objective, as in the body of a request
# The setting of malloc for a fork server: pages of 2 MiB. A fork copies the page tables of the server's heap, and the exit of the child
# removes the copy. With large pages, both take 22 ms of processor time instead of 36 ms, if the server has imported PyTorch and Ray.
TUNABLES, HUGE_PAGES = "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"


@dataclass(frozen=True, slots=True)
class UserCodeLimits:
    """Limits on the user code of one worker."""

    processes: int = 4096  #: Processes and threads of an attempt, counted together.
    open_files: int = 65_536  #: Open files of one process.
    import_bytes: int = 8 * GIB  #: Memory for importing a trainable when the service checks it.
    #: Additional environment variables that user code may see. A trailing `*` matches every name with that prefix.
    passed: tuple[str, ...] = ()

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Read the limits from variables that the service has checked and passed on to the worker."""
        given = {
            "processes": environ.get("TUNER_MAX_PROCESSES"),
            "open_files": environ.get("TUNER_MAX_OPEN_FILES"),
        }
        numbers = {name: int(text) for name, text in given.items() if text}
        names = environ.get("TUNER_PASS_ENV", "").split(",")
        return cls(**numbers, passed=tuple(name.strip() for name in names if name.strip()))

    def environment(self, environ: Mapping[str, str], import_path: list[str]) -> dict[str, str]:
        """Return the environment variables for user code.

        They contain no Ray token, no database address, and no credentials of the service or a cloud. They name the directory for cached
        datasets, which must outlast the attempt: user code's own directory for temporary files is removed with the attempt.

        Args:
            environ: The variables of the worker.
            import_path: The directories for PYTHONPATH. Empty entries are dropped.
        """
        kept = {name: value for name, value in environ.items() if self._passes(name, value)}
        kept["PYTHONPATH"] = os.pathsep.join(path for path in import_path if path)
        kept["PYTHONUNBUFFERED"] = "1"
        # Sets of strings have the same order in each process. Otherwise a resumed trial could number the classes of its data differently.
        kept.setdefault(HASH_SEED, "0")
        kept["RAY_USAGE_STATS_ENABLED"] = "0"
        # Number the GPUs as NVML and Ray do. Let PyTorch count them through NVML: otherwise a module that counts GPUs when it is
        # imported would make CUDA unusable in every fork.
        kept |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
        kept[CACHE_DIR] = environ.get(CACHE_DIR) or tempfile.gettempdir()
        kept[CACHE_GIB] = environ.get(CACHE_GIB) or str(DEFAULT_GIB)
        return kept

    def _passes(self, name: str, value: str) -> bool:
        if name.startswith(OURS):
            return True
        if is_own(name):
            return False
        if any(
            name == passed or (passed.endswith("*") and name.startswith(passed[:-1]))
            for passed in self.passed
        ):
            return True
        if name.upper() in PROXIES:
            # a proxy URL with a password is passed on only if TUNER_PASS_ENV names the variable, which was checked above
            return "@" not in value
        if name in ALLOWED_ENV:
            return True
        return name.startswith(ALLOWED_PREFIXES) and not any(word in name for word in SECRETS)

    def hold(self, pid: int) -> None:
        """Limit the open files of a process and its future children, and disable their core dumps.

        Do nothing if the process is gone.
        """
        try:
            soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            most = self.open_files if hard == resource.RLIM_INFINITY else min(self.open_files, hard)
            least = most if soft == resource.RLIM_INFINITY else min(soft, most)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (least, most))
            resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
        except ProcessLookupError:
            return


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """The arguments of a probe: the trainable to describe, and the limits for importing it."""

    entry: str  #: The trainable, `module:attribute`.
    limit_s: float  #: How long the probe may take, in seconds.
    processes: int  #: Processes and threads, counted together.
    memory_bytes: int
    package: str = ""  #: The folder that `entry` comes from, or empty.
    kind: str = ""  #: `optuna` to record the search space of an objective, otherwise empty.

    def text(self) -> str:
        return json.dumps(astuple(self))


def is_own(name: str) -> bool:
    """Return whether an environment variable belongs to the service or Ray. User code does not get it, even if TUNER_PASS_ENV names it."""
    return name.startswith(("TUNER_", "RAY_")) and not name.startswith(OURS)


def give_up_privileges() -> None:
    """Prevent this process and its descendants from gaining privileges through setuid programs such as sudo."""
    ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def excess(
    pid: int, *, processes: int, memory_bytes: int | None, shares_imports: bool = False
) -> tuple[Literal["processes", "memory"], str] | None:
    """Return which limit the descendants of a process exceed, with a message about it. Return None if they exceed no limit.

    Args:
        pid: The id of the process. If it has no descendants, its own use counts.
        processes: The highest allowed number of processes and threads, counted together.
        memory_bytes: The most memory that is allowed. None means no limit.
        shares_imports: Whether processes outside of these share the memory of the imports and of prepared data. Then only a part of it counts.
            Otherwise all of it counts, once for all processes.
    """
    pids = descendants(pid, most=processes) or [pid]
    use = resource_use(pids)
    if use.processes > processes:
        words = (
            f"has more than {processes} processes and threads, the limit that TUNER_MAX_PROCESSES sets; "
            "start fewer (workers of data loaders, pools), or have the operator raise the limit"
        )
        return "processes", words
    if memory_bytes is not None and use.memory_bytes > memory_bytes:
        used = proportional_bytes(pids if shares_imports else {pid, *pids})
        if used > memory_bytes:
            words = (
                f"used {used / GIB:.1f} GiB of memory, more than its share of {memory_bytes / GIB:.1f} GiB"
            )
            return "memory", words
    return None
