/* SPDX-License-Identifier: PostgreSQL */
/* Opening: which files are the journal, and where it ends. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "journal/writer.h"

struct name {
    uint64_t sequence;
    struct position after;
    char text[SEGMENT_NAME_SIZE];
};

static int compare_names(const void *a, const void *b)
{
    const struct name *x = a, *y = b;

    return x->sequence < y->sequence ? -1 : x->sequence > y->sequence;
}

/* The segments' names in the folder, by sequence; what else lies there is nobody's business. 0 or a negative errno. */
static int list_names(const char *folder, struct name **ret, size_t *ret_n)
{
    struct name *names = NULL;
    size_t n = 0, cap = 0;
    DIR *dir = opendir(folder);
    struct dirent *e;
    int r = 0;

    if (!dir)
        return -errno;
    while ((errno = 0, e = readdir(dir))) {
        struct name name;

        if (segment_name_parse(e->d_name, &name.sequence, &name.after) < 0)
            continue;
        (void)memcpy(name.text, e->d_name, strlen(e->d_name) + 1); /* it has the length of a name */
        if (n == cap) {
            struct name *grown = realloc(names, (cap = 2 * cap + 16) * sizeof *grown);

            if (!grown) {
                r = -ENOMEM;
                break;
            }
            names = grown;
        }
        names[n++] = name;
    }
    if (!e && errno)
        r = -errno;
    (void)closedir(dir);
    if (r < 0) {
        free(names);
        return r;
    }
    if (n)
        qsort(names, n, sizeof *names, compare_names);
    *ret = names;
    *ret_n = n;
    return 0;
}

static int make_folder(const char *folder)
{
    char *copy, *slash;
    int r;

    if (mkdir(folder, 0700) < 0)
        return errno == EEXIST ? 0 : -errno;
    copy = strdup(folder);
    if (!copy)
        return -ENOMEM;
    slash = strrchr(copy, '/');
    if (slash && slash != copy)
        *slash = '\0';
    r = segment_sync_folder(!slash ? "." : slash == copy ? "/" : copy);
    free(copy);
    return r;
}

static int wrong(char why[JOURNAL_WHY_SIZE], int error, const char *fmt, ...) PRINTF_LIKE(3, 4);

static int wrong(char why[JOURNAL_WHY_SIZE], int error, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(why, JOURNAL_WHY_SIZE, fmt, ap);
    va_end(ap);
    return error;
}

/* Opens one, and checks what its header says against its name, and against the next one's, if there is one. */
static int open_segment(const char *folder, const struct name *name, const struct segment *next,
                        struct segment **ret, char why[JOURNAL_WHY_SIZE])
{
    struct segment *s;
    char *path = NULL;

    if (asprintf(&path, "%s/%s", folder, name->text) < 0)
        return wrong(why, -ENOMEM, "no memory");
    int r = segment_open(path, next ? next->header.previous_size : 0, &s);
    free(path);
    if (r == -EPROTONOSUPPORT)
        return wrong(why, -EBADMSG, "%s/%s has a format that this version does not know", folder,
                     name->text);
    if (r == -EBADMSG)
        return wrong(why, r, "%s/%s is not a segment of a journal, or its header is damaged",
                     folder, name->text);
    if (r < 0)
        return wrong(why, r, "%s/%s cannot be read: %s", folder, name->text, strerror(-r));
    const struct segment_header *h = &s->header;
    if (h->sequence != name->sequence || position_compare(h->after, name->after) != 0)
        r = wrong(why, -EBADMSG, "%s/%s has the name of another segment", folder, name->text);
    else if (h->previous_size && h->previous_size < SEGMENT_HEADER_SIZE)
        r = wrong(why, -EBADMSG, "%s/%s does not say how far the segment before it is valid",
                  folder, name->text);
    else if (next &&
             (h->system_identifier != next->header.system_identifier || h->era != next->header.era))
        r = wrong(why, -EBADMSG, "%s/%s belongs to another journal than the segment behind it",
                  folder, name->text);
    if (r < 0) {
        segment_unref(s);
        return r;
    }
    if (next) {
        s->has_next = true;
        s->next_checksum = next->header.previous_checksum;
    }
    *ret = s;
    return 0;
}

/* Opens the segments of the newest era, newest first, as each says how far the one before it is valid. What is older was to be
 * unlinked when that era began. */
static int open_segments(struct journal *j, const struct name *names, size_t n,
                         char why[JOURNAL_WHY_SIZE])
{
    struct segment *next = NULL;
    size_t i = n;

    j->segments = calloc(n, sizeof(struct segment *));
    if (!j->segments)
        return wrong(why, -ENOMEM, "no memory");
    j->segments_cap = n;
    while (i && (!next || next->header.previous_size)) {
        struct segment *s = NULL;

        if (next && names[i - 1].sequence != next->header.sequence - 1)
            return wrong(
                why, -EBADMSG,
                "in %s the segment between %s and %s is missing, or there are two of one number",
                j->folder, names[i - 1].text, names[i].text);
        int r = open_segment(j->folder, &names[i - 1], next, &s, why);
        if (r < 0)
            return r;
        i--;
        (void)memmove(j->segments + 1, j->segments, j->n_segments++ * sizeof(struct segment *));
        j->segments[0] = next = s;
    }
    for (size_t k = 0; k < i; k++) {
        char path[PATH_MAX];

        if ((size_t)snprintf(path, sizeof path, "%s/%s", j->folder, names[k].text) >= sizeof path)
            return wrong(why, -ENAMETOOLONG, "the path of %s is too long", j->folder);
        *j->stale_end = doomed_new(path);
        if (!*j->stale_end)
            return wrong(why, -ENOMEM, "no memory");
        j->stale_end = &(*j->stale_end)->next;
    }
    return 0;
}

/* Reads the newest one to its last whole record. It, and its name, may never have been synced by the router that died: done now, so that
 * what is found can be built on. */
static int recover(struct journal *j, char why[JOURNAL_WHY_SIZE])
{
    struct segment *tail = j->segments[j->n_segments - 1];
    struct writer *w = &j->writer;

    int r = fdatasync(tail->fd) < 0 ? -errno : segment_sync_folder(j->folder);
    if (r < 0)
        return wrong(why, r, "%s cannot be synced: %s", tail->path, strerror(-r));
    r = segment_verify(tail, true);
    if (r < 0)
        return wrong(why, r, "%s cannot be read: %s", tail->path, strerror(-r));
    w->tail = segment_ref(tail);
    w->now = w->synced = segment_state_of(tail);
    j->running_base = w->now.running_ms;
    for (size_t i = 0; i + 1 < j->n_segments; i++)
        j->size_before_tail += segment_disk_size(j->segments[i]);
    journal_set_end(j, &tail->header);
    if (tail->file_size > w->now.end.offset)
        log_line(j->log, LOG_WARNING, "journal.torn",
                 "The journal's last segment ends in bytes that are no whole record. What was not acknowledged "
                 "of them the server sends again; had they been, the slot is found to be beyond the journal.",
                 LOG_STR("file", tail->path), LOG_U64("offset", w->now.end.offset),
                 LOG_U64("bytes", tail->file_size - w->now.end.offset));
    return 0;
}

int journal_open_folder(struct journal *j, char why[JOURNAL_WHY_SIZE])
{
    struct name *names = NULL;
    size_t n = 0;

    int r = make_folder(j->folder);
    if (r == 0)
        r = list_names(j->folder, &names, &n);
    if (r < 0)
        return wrong(why, r, "%s cannot be opened: %s", j->folder, strerror(-r));
    if (n) {
        r = open_segments(j, names, n, why);
        if (r == 0)
            r = recover(j, why);
    }
    free(names);
    return r;
}
