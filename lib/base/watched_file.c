/* SPDX-License-Identifier: PostgreSQL */
#include "base/watched_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"

/* ---- the path ---- */

/* Not realpath(3): what a link in it points to is looked up each time. */
static int make_absolute(const char *path, char **ret)
{
    if (*path == '/') {
        *ret = strdup(path);
        return *ret ? 0 : -ENOMEM;
    }
    char *folder = getcwd(NULL, 0);
    if (!folder)
        return -errno;
    int n = asprintf(ret, "%s/%s", folder, path);
    free(folder);
    return n < 0 ? -ENOMEM : 0;
}

int watched_file_init(struct watched_file *w, const char *path, uint64_t interval_ns)
{
    char *absolute;
    int r = make_absolute(path, &absolute);

    if (r < 0)
        return r;
    *w = (struct watched_file){
        .path = absolute,
        .interval_ns = interval_ns,
        .quiet_ns = WATCHED_FILE_QUIET_NS,
    };
    return 0;
}

void watched_file_deinit(struct watched_file *w)
{
    free(w->path);
    free(w->complaint);
    *w = (struct watched_file){.path = NULL};
}

/* ---- looking ---- */

bool watched_file_is_due(struct watched_file *w, uint64_t now_ns)
{
    if (now_ns < w->next_ns)
        return false;
    w->next_ns = now_ns + w->interval_ns;
    return true;
}

static struct watched_stamp stamp_of(const char *path)
{
    struct stat st;

    if (stat(path, &st) < 0)
        return (struct watched_stamp){.there = false};
    return (struct watched_stamp){
        .there = true,
        .device = st.st_dev,
        .inode = st.st_ino,
        .size = (uint64_t)st.st_size,
        .mtime = st.st_mtim,
        .ctime = st.st_ctim,
    };
}

static bool same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

static bool same(const struct watched_stamp *a, const struct watched_stamp *b)
{
    return a->there == b->there && a->device == b->device && a->inode == b->inode &&
           a->size == b->size && same_time(a->mtime, b->mtime) && same_time(a->ctime, b->ctime);
}

/* Since its last change; negative when the file system's clock is ahead. */
static int64_t age_ns(const struct watched_stamp *stamp)
{
    int64_t now_ns = clock_realtime_us() * 1000, changed_ns, age;

    if (__builtin_mul_overflow(stamp->ctime.tv_sec, INT64_C(1000000000), &changed_ns) ||
        __builtin_add_overflow(changed_ns, stamp->ctime.tv_nsec, &changed_ns) ||
        __builtin_sub_overflow(now_ns, changed_ns, &age))
        return stamp->ctime.tv_sec < 0 ? INT64_MAX : INT64_MIN;
    return age;
}

bool watched_file_is_quiet(struct watched_file *w, uint64_t now_ns)
{
    struct watched_stamp now = stamp_of(w->path);
    int64_t age = now.there ? age_ns(&now) : INT64_MAX;

    if (age < 0 || age >= w->quiet_ns)
        return true;
    w->next_ns = now_ns + (uint64_t)(w->quiet_ns - age);
    return false;
}

enum watched_change watched_file_look(struct watched_file *w)
{
    struct watched_stamp now = stamp_of(w->path);
    bool settled = age_ns(&now) >= WATCHED_FILE_SETTLE_NS;

    if (w->good && now.there && same(&now, &w->seen) && !(w->unsettled && settled))
        return WATCHED_SAME;
    w->seen = now;
    w->unsettled = !settled;
    w->good = false;
    return WATCHED_CHANGED;
}

bool watched_file_is_other(const struct watched_file *w)
{
    struct watched_stamp now = stamp_of(w->path);

    return !same(&now, &w->seen);
}

/* ---- what became of it ---- */

bool watched_file_good(struct watched_file *w)
{
    bool mended = w->complaint != NULL;

    free(w->complaint);
    w->complaint = NULL;
    w->good = true;
    return mended;
}

bool watched_file_bad(struct watched_file *w, const char *why)
{
    if (w->complaint && strcmp(w->complaint, why) == 0)
        return false;
    free(w->complaint);
    w->complaint = strdup(why); /* without memory for it it is said again */
    return true;
}
