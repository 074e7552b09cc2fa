/* SPDX-License-Identifier: PostgreSQL */
#include "client/subscription.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "client/frame_reader.h"

/** So much of what verifying took is kept for the next message: as much as of what was received. */
#define SCRATCH_KEEP FRAME_READER_SIZE

/** There is no object yet whose error could say what is wrong with the file. */
enum walbus_result subscription_take_trust(struct walbus_subscription *s,
                                           const struct walbus_subscription_options *o)
{
    char why[TRUST_FILE_WHY_SIZE];

    s->valid_only = o->flags & WALBUS_VALID_ONLY;
    s->audience = strdup(o->audience ? o->audience : "");
    if (!s->audience)
        return WALBUS_NO_MEMORY;
    if (!o->trust)
        return WALBUS_OK;
    int rc = trust_file_init(&s->trust, o->trust, why);
    if (rc == 0) {
        s->verifies = true;
        return WALBUS_OK;
    }
    if (rc == -ENOMEM)
        return WALBUS_NO_MEMORY;
    if (o->log)
        o->log(o->context, why);
    return WALBUS_BAD_TRUST;
}

void subscription_drop_trust(struct walbus_subscription *s)
{
    if (s->verifies)
        trust_file_deinit(&s->trust);
    buf_deinit(&s->scratch);
    free(s->audience);
}

int subscription_verify(struct walbus_subscription *s, const struct frame_message *message)
{
    char why[TRUST_FILE_WHY_SIZE];

    if (!s->verifies)
        return 0;
    switch (trust_file_refresh(&s->trust, clock_monotonic_ns(), why)) {
    case TRUST_FILE_NEW:
        subscription_log(s, "The trust file was read anew%s: %s.",
                         trust_count(s->trust.trust) ? "" : ", and has no keys, so nothing is valid",
                         s->trust.watched.path);
        break;
    case TRUST_FILE_BROKEN:
        subscription_log(s, "The trust file is no good, so what was read before stays: %s", why);
        break;
    case TRUST_FILE_SAME:
        break;
    }
    int rc = delivery_verify(&s->delivery, message, s->trust.trust, bytes_of_text(s->audience),
                             &s->scratch);

    if (s->scratch.cap > SCRATCH_KEEP)
        buf_deinit(&s->scratch);
    return rc;
}

uint64_t walbus_subscription_withheld(const struct walbus_subscription *s)
{
    return s ? s->withheld : 0;
}
