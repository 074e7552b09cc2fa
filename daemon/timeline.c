/* SPDX-License-Identifier: PostgreSQL */
#include "timeline.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "codec/position.h"

#define LINE_MAX_SIZE 64 /* of the part that is read: number, tab, LSN */

static int parse_line(struct bytes line, struct timeline_switch *ret)
{
    char text[LINE_MAX_SIZE];
    size_t n = line.size < sizeof text - 1 ? line.size : sizeof text - 1;
    char *end;

    memcpy(text, line.data, n);
    text[n] = 0;
    if (*text < '0' || *text > '9') /* strtoul also takes blanks and signs */
        return -EBADMSG;
    errno = 0;
    unsigned long timeline = strtoul(text, &end, 10);
    if (errno || end == text || timeline == 0 || timeline > UINT32_MAX)
        return -EBADMSG;
    char *lsn = end + strspn(end, " \t");
    if (lsn == end)
        return -EBADMSG;
    lsn[strcspn(lsn, " \t")] = 0;
    if (lsn_parse(lsn, &ret->at) < 0)
        return -EBADMSG;
    ret->timeline = (uint32_t)timeline;
    return 0;
}

int timeline_history_parse(struct timeline_history *ret, uint32_t current, struct bytes text)
{
    struct timeline_history h = {.current = current};
    size_t at = 0;

    while (at < text.size) {
        const uint8_t *line = text.data + at;
        const uint8_t *nl = memchr(line, '\n', text.size - at);
        size_t size = nl ? (size_t)(nl - line) : text.size - at;

        at += size + 1;
        while (size && (*line == ' ' || *line == '\t')) {
            line++;
            size--;
        }
        while (size && line[size - 1] == '\r')
            size--;
        if (size == 0 || *line == '#')
            continue;
        struct timeline_switch s;
        if (parse_line((struct bytes){line, size}, &s) < 0 ||
            (h.n && s.timeline <= h.switches[h.n - 1].timeline) || s.timeline >= current) {
            timeline_history_deinit(&h);
            return -EBADMSG;
        }
        struct timeline_switch *more = realloc(h.switches, (h.n + 1) * sizeof *more);
        if (!more) {
            timeline_history_deinit(&h);
            return -ENOMEM;
        }
        h.switches = more;
        h.switches[h.n++] = s;
    }
    *ret = h;
    return 0;
}

void timeline_history_deinit(struct timeline_history *h)
{
    free(h->switches);
    *h = (struct timeline_history){0};
}

uint32_t timeline_of(const struct timeline_history *h, uint64_t lsn)
{
    for (size_t i = 0; i < h->n; i++)
        if (h->switches[i].at > lsn)
            return h->switches[i].timeline;
    return h->current;
}
