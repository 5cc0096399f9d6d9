"""Report which external programs the tests need and lack, and how to install them.

    python -m tools.programs    installs the missing programs from Debian, if this user may use apt-get

Programs are installed without starting the services that their packages contain. A program that cannot be installed is reported, and the
tests that need it are skipped. With `CI=true`, these tests fail instead.
"""

import glob
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

# Debian's packages run this before they start a service. Status 101 forbids the start; see `man invoke-rc.d`.
POLICY = Path("/usr/sbin/policy-rc.d")
FORBID_STARTS = "#!/bin/sh\nexit 101\n"


@dataclass(frozen=True, slots=True)
class Program:
    """An external program, or a library of the system, that tests need."""

    name: str  #: As in `@pytest.mark.needs("…")`.
    package: str  #: Debian's package that contains it.
    #: The commands that are needed, all of them. Each is given by its possible names or path patterns.
    commands: tuple[tuple[str, ...], ...]
    services: tuple[str, ...] = field(default=())  #: systemd units that the package would start at boot.

    def missing(self) -> bool:
        return not all(any(map(find, names)) for names in self.commands)

    @property
    def install_command(self) -> str:
        return f"apt-get install {self.package}"


# The first of these that is installed is used. The headless shell comes first, because it has no windows and halves a test's processor time.
CHROMIUM = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)
PROGRAMS = {
    program.name: program
    for program in (
        Program("chromium", CHROMIUM[0], (CHROMIUM,)),
        Program("curl", "curl", (("curl",),)),
        # LightGBM's package lacks this library. Other packages contain it.
        Program("libgomp", "libgomp1", (("/usr/lib*/*/libgomp.so.1", "/usr/lib*/libgomp.so.1"),)),
        Program("prometheus", "prometheus", (("prometheus",), ("promtool",)), ("prometheus.service",)),
        Program("systemd-analyze", "systemd", (("systemd-analyze",),)),
        Program(
            "postgresql",
            "postgresql",
            tuple((f"/usr/lib/postgresql/*/bin/{name}", name) for name in ("initdb", "postgres", "pg_ctl")),
            ("postgresql.service",),
        ),
    )
}


def find(name: str) -> str | None:
    """Return the path of a program, by its name or a pattern of its path; the newest version if several match."""
    if "/" in name:
        return max(glob.glob(name), default=None)
    return shutil.which(name)


def missing() -> list[Program]:
    return [program for program in PROGRAMS.values() if program.missing()]


def root_prefix() -> list[str] | None:
    """Return what to put before a command that needs root, or None if this user cannot become root without a password."""
    if shutil.which("apt-get") is None:
        return None
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") and subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0:
        return ["sudo", "-n"]
    return None


def install(programs: Sequence[Program], prefix: list[str]) -> bool:
    """Install Debian's packages and return whether that succeeded. Services that the packages contain are not started."""
    packages = [program.package for program in programs]
    apt_get = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]
    with services_not_started(prefix):
        for words in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
            # Print the output only on failure: that of a successful installation is hundreds of lines.
            done = subprocess.run([*apt_get, *words], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                print(f"apt-get {' '.join(words)} failed:\n{done.stdout}{done.stderr}", file=sys.stderr)
                return False
    if Path("/run/systemd/system").is_dir():
        units = [unit for program in programs for unit in program.services]
        if units:  # Without this, the services would start when the machine boots.
            subprocess.run([*prefix, "systemctl", "disable", "--quiet", *units], check=False)
    return True


@contextmanager
def services_not_started(prefix: list[str]) -> Iterator[None]:
    """Forbid packages to start services. A policy that this machine already has is left unchanged."""
    if POLICY.exists():
        yield
        return
    write = f"umask 022; printf '%s' '{FORBID_STARTS}' > {POLICY}; chmod 755 {POLICY}"
    subprocess.run([*prefix, "sh", "-c", write], check=True)
    try:
        yield
    finally:
        subprocess.run([*prefix, "rm", "-f", str(POLICY)], check=True)


def main() -> None:
    absent = missing()
    if not absent:
        return
    names = ", ".join(program.name for program in absent)
    prefix = root_prefix()
    if prefix is None:
        print(
            f"missing programs, which this user cannot install: {names}. The tests that need them are skipped."
        )
        return
    print(f"installing {names} from Debian, without starting any service")
    if not install(absent, prefix):
        sys.exit(1)
    if absent := missing():
        print(f"still missing after the installation: {', '.join(program.name for program in absent)}")


if __name__ == "__main__":
    main()
