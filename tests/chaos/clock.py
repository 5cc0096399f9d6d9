"""Move the wall clock of our own processes. A preloaded library adds the offset in a file to libc's time;
monotonic clocks are unchanged.
"""

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long nothing = 0, *seconds = &nothing;

/* The services and drivers of tuner alone: Ray's own processes wait until a time of the real clock. */
static int is_ours(void) {
    char line[65536];
    int file = open("/proc/self/cmdline", O_RDONLY);
    ssize_t length = file < 0 ? 0 : read(file, line, sizeof line - 1);
    if (file >= 0) close(file);
    for (ssize_t at = 0; at < length; at++) if (!line[at]) line[at] = ' ';
    line[length > 0 ? length : 0] = 0;
    return strstr(line, "tuner.cli.main serve") || strstr(line, "tuner.service.driver");
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CHAOS_CLOCK");
    int file = path && is_ours() ? open(path, O_RDONLY) : -1;
    if (file < 0) return;
    void *found = mmap(0, sizeof(long long), PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) seconds = found;
    close(file);
}

int clock_gettime(clockid_t id, struct timespec *time) {
    int failed = syscall(SYS_clock_gettime, id, time);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) time->tv_sec += *seconds;
    return failed;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    if (time) { time->tv_sec = now.tv_sec; time->tv_usec = now.tv_nsec / 1000; }
    return 0;
}

time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}
"""


class Clock:
    """`environment` makes a process use the moved clock. It is empty if this machine has no C compiler."""

    def __init__(self, folder: Path) -> None:
        self.environment: dict[str, str] = {}
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            return
        source, library, offset = folder / "clock.c", folder / "clock.so", folder / "clock.offset"
        source.write_text(SOURCE)
        offset.write_bytes(bytes(8))
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
        self._file = offset.open("r+b")
        self._shared = mmap.mmap(self._file.fileno(), 8)
        self.environment = {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(offset)}

    def jump(self, seconds: int) -> bool:
        """Set the clock to `seconds` from the true time. Return False if the clock cannot be moved."""
        if not self.environment:
            return False
        self._shared[:] = struct.pack("q", seconds)
        return True
