/* SPDX-License-Identifier: PostgreSQL */
/*
 * A timeline history, which the server sends as text. What was read is written in PostgreSQL's form
 * and read again, and timeline_of is compared with a search of its own.
 */
#include "timeline.h"

#include <errno.h>
#include <inttypes.h>

#include "base/buf.h"
#include "fuzz.h"

#define CURRENT 1000

static uint32_t expected_timeline(const struct timeline_history *h, uint64_t lsn)
{
    uint32_t found = h->current;

    for (size_t i = h->n; i-- > 0;)
        if (lsn < h->switches[i].at)
            found = h->switches[i].timeline;
    return found;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct timeline_history h, again;
    struct buf text = BUF_INIT;

    fuzz_mark(&h, sizeof h);
    int r = timeline_history_parse(&h, CURRENT, (struct bytes){data, size});
    if (r < 0) {
        FUZZ_CHECK(r == -EBADMSG && fuzz_is_marked(&h, sizeof h));
        return 0;
    }
    FUZZ_CHECK(h.current == CURRENT);
    for (size_t i = 0; i < h.n; i++) {
        FUZZ_CHECK(h.switches[i].timeline > (i ? h.switches[i - 1].timeline : 0));
        FUZZ_CHECK(h.switches[i].timeline < CURRENT);
        buf_printf(&text, "%" PRIu32 "\t%" PRIX32 "/%" PRIX32 "\tno recovery target specified\n",
                   h.switches[i].timeline, (uint32_t)(h.switches[i].at >> 32),
                   (uint32_t)h.switches[i].at);
        for (uint64_t lsn = h.switches[i].at - 1; lsn != h.switches[i].at + 2; lsn++)
            FUZZ_CHECK(timeline_of(&h, lsn) == expected_timeline(&h, lsn));
    }
    FUZZ_CHECK(timeline_history_parse(&again, CURRENT, buf_bytes(&text)) == 0);
    FUZZ_CHECK(again.n == h.n);
    for (size_t i = 0; i < h.n; i++)
        FUZZ_CHECK(again.switches[i].timeline == h.switches[i].timeline &&
                   again.switches[i].at == h.switches[i].at);
    timeline_history_deinit(&again);
    timeline_history_deinit(&h);
    buf_deinit(&text);
    return 0;
}
