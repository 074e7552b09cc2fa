# SPDX-License-Identifier: PostgreSQL
"""What stands in another process's memory, and what of that a core dump would hold."""

import re
import struct

PAGE = 4096
# /proc/PID/pagemap: the page is in memory, or swapped out.
PRESENT, SWAPPED = 1 << 63, 1 << 62
CHUNK = 1 << 20
# What a core dump leaves out and is larger is not looked into: the shadow of AddressSanitizer's has terabytes.
UNDUMPED_MAX = 1 << 26


class Mapping:
    def __init__(self, start, end, readable, name):
        self.start, self.end, self.readable, self.name = start, end, readable, name
        self.kilobytes = 0  # in memory, or swapped out
        self.flags = set()

    @property
    def is_dumped(self):
        """By the kernel's default filter all but what was told not to be (MADV_DONTDUMP) and what is of a device."""
        return not self.flags & {"dd", "io"}

    def __repr__(self):
        return f"{self.start:x}-{self.end:x} {self.name} {' '.join(sorted(self.flags))}"


def mappings(pid):
    found = []
    with open(f"/proc/{pid}/smaps", encoding="utf-8") as file:
        for line in file:
            head = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+ *(.*)", line)
            if head:
                start, end, rights, name = head.groups()
                found.append(Mapping(int(start, 16), int(end, 16), "r" in rights, name))
            elif line.startswith(("Rss:", "Swap:")):
                found[-1].kilobytes += int(line.split()[1])
            elif line.startswith("VmFlags:"):
                found[-1].flags = set(line.split()[1:])
    return found


def _runs_of_pages(pagemap, mapping):
    """(start, end) of what has pages, in runs."""
    run = None
    for at in range(mapping.start, mapping.end, CHUNK * PAGE // 8):
        pagemap.seek(at // PAGE * 8)
        entries = pagemap.read(min(CHUNK, (mapping.end - at) // PAGE * 8))
        for i, (entry,) in enumerate(struct.iter_unpack("=Q", entries)):
            if entry & (PRESENT | SWAPPED):
                place = at + i * PAGE
                if run and run[1] == place:
                    run[1] += PAGE
                else:
                    if run:
                        yield tuple(run)
                    run = [place, place + PAGE]
    if run:
        yield tuple(run)


def search(pid, *needles):
    """{needle: the mappings that hold it}, over all that a core dump would hold, and of the rest what is small."""
    found = {needle: [] for needle in needles}
    looked_at = 0
    with (open(f"/proc/{pid}/mem", "rb", buffering=0) as memory,
          open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap):
        for mapping in mappings(pid):
            if not mapping.readable or mapping.kilobytes == 0 or mapping.name in ("[vvar]", "[vsyscall]"):
                continue
            if not mapping.is_dumped and mapping.end - mapping.start > UNDUMPED_MAX:
                continue
            for start, end in _runs_of_pages(pagemap, mapping):
                memory.seek(start)
                content = memory.read(end - start)
                looked_at += len(content)
                for needle in needles:
                    if needle in content:
                        found[needle].append(mapping)
    assert looked_at > 100 * PAGE
    return found
