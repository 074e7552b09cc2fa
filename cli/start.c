/* SPDX-License-Identifier: PostgreSQL */
#include "start.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"

int start_parse(const char *text, int64_t now_us, struct start *ret)
{
    struct start s = {.start = WALBUS_START_NOW};
    uint64_t ago;

    if (strcmp(text, "now") == 0) {
        s.start = WALBUS_START_NOW;
    } else if (strcmp(text, "oldest") == 0) {
        s.start = WALBUS_START_OLDEST;
    } else if (text[0] == '-') {
        /* what is longer ago than 1970 is as long ago as that */
        if (text_parse_duration(text + 1, "s", &ago) < 0)
            return -EINVAL;
        s.start = WALBUS_START_TIME;
        s.time_us = ago < (uint64_t)now_us ? now_us - (int64_t)ago : 0;
    } else if (walbus_position_parse(text, &s.position) == WALBUS_OK) {
        if (s.position.timeline == 0) /* there is none: it would be a start without a position */
            return -EINVAL;
        s.start = WALBUS_START_POSITION;
    } else if (clock_parse_rfc3339(text, &s.time_us) == 0) {
        s.start = WALBUS_START_TIME;
    } else {
        return -EINVAL;
    }
    *ret = s;
    return 0;
}
