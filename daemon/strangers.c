/* SPDX-License-Identifier: PostgreSQL */
#include "strangers.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* What the kernel begins with. */
#define NOBODY 65534u

/* The first line of a map, or all of it as far as it fits: one that maps all has one line. */
static void read_text(const char *path, char *out, size_t size)
{
    FILE *file = fopen(path, "re");
    size_t n = file ? fread(out, 1, size - 1, file) : 0;

    out[n] = '\0';
    if (file)
        (void)fclose(file);
}

bool strangers_map_is_whole(const char *text)
{
    unsigned long inside, outside, n;

    return sscanf(text, "%lu %lu %lu", &inside, &outside, &n) == 3 && inside == 0 && n >= UINT32_MAX;
}

static bool is_whole(const char *path)
{
    char text[256];

    read_text(path, text, sizeof text);
    return !*text || strangers_map_is_whole(text);
}

static unsigned read_id(const char *path)
{
    char text[32];
    unsigned id;

    read_text(path, text, sizeof text);
    return sscanf(text, "%u", &id) == 1 ? id : NOBODY;
}

void strangers_find(struct strangers *ret)
{
    *ret = (struct strangers){
        .are = !is_whole("/proc/self/uid_map") || !is_whole("/proc/self/gid_map"),
        .uid = read_id("/proc/sys/kernel/overflowuid"),
        .gid = read_id("/proc/sys/kernel/overflowgid"),
    };
}
