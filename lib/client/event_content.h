/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLIENT_EVENT_CONTENT_H
#define WALBUS_CLIENT_EVENT_CONTENT_H

/* From the public struct walbus_event to the content of a message. Pure. */

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/macros.h"
#include "walbus/publish.h"

struct event_defaults {
    const char *source;
    int64_t now_us;     /* µs since 1970 */
    size_t max_content; /* bytes; data beyond it is refused before it is copied */
};

/**
 * Appends the encoded event. `id` gets the new id, or "" when the event has its own. WALBUS_OK;
 * WALBUS_BAD_ARGUMENT (data NULL with a size, unknown data_kind, attributes NULL with a number
 * or with NULL members, a time beyond the years 1 to 9999); WALBUS_BAD_EVENT; WALBUS_TOO_LARGE;
 * WALBUS_NO_MEMORY; on a failure a sentence is appended to `why`, and what `out` then holds is of no use.
 */
enum walbus_result event_content_put(const struct walbus_event *event,
                                     const struct event_defaults *defaults, struct buf *out,
                                     char id[WALBUS_ID_SIZE], struct buf *why) MUST_CHECK;

#endif
