/* SPDX-License-Identifier: PostgreSQL */
#include "codec/verify.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"
#include "codec/event.h"
#include "codec/signed_event.h"

/* So much of foreign text is shown that the sentence around it still fits. */
#define SHOWN_SIZE 80

const char *verify_status_text(enum verify_status status)
{
    switch (status) {
#define VERIFY_ROW(name, number, word) \
    case VERIFY_##name:                \
        return word;
        VERIFY_STATUSES(VERIFY_ROW)
#undef VERIFY_ROW
    }
    return "unknown";
}

/* ---- the answer ---- */

static int say(struct verify_result *ret, enum verify_status status, const char *fmt, ...)
    PRINTF_LIKE(3, 4);

static int say(struct verify_result *ret, enum verify_status status, const char *fmt, ...)
{
    va_list ap;

    ret->status = status;
    va_start(ap, fmt);
    (void)vsnprintf(ret->reason, sizeof ret->reason, fmt, ap);
    va_end(ap);
    return 0;
}

/* A sentence as it is: what comes with every message has to cost nothing. */
static int say_plainly(struct verify_result *ret, enum verify_status status, const char *sentence)
{
    size_t size = MIN(strlen(sentence), sizeof ret->reason - 1);

    ret->status = status;
    memcpy(ret->reason, sentence, size);
    ret->reason[size] = '\0';
    return 0;
}

/* Foreign text for a sentence; "" without memory for it. */
static const char *shown(struct bytes text, struct buf *room)
{
    struct bytes start = {text.data, MIN(text.size, (size_t)SHOWN_SIZE)};

    text_put_visible(room, start);
    if (text.size > start.size)
        buf_append_str(room, "...");
    return buf_str(room);
}

static int say_bad_signature(struct verify_result *ret, struct bytes audience)
{
    struct buf room = BUF_INIT;

    (void)say(ret, VERIFY_BAD_SIGNATURE,
              "The signature is not this key's over these bytes for this prefix and the audience "
              "\"%s\"%s.",
              shown(audience, &room),
              audience.size ? "" : "; if it was signed for another, --audience or the setting audience names it");
    buf_deinit(&room);
    return 0;
}

static int say_not_allowed(struct verify_result *ret, struct bytes prefix)
{
    struct buf room = BUF_INIT;

    (void)say(ret, VERIFY_NOT_ALLOWED,
              "The key has signed this, but may not sign for the prefix \"%s\".",
              shown(prefix, &room));
    buf_deinit(&room);
    return 0;
}

/* ---- max-delay ---- */

/* Seconds for people: tenths are enough to look at a clock by. */
static int say_stale(struct verify_result *ret, int64_t delay_us, int64_t max_us)
{
    struct buf max = BUF_INIT;
    double seconds = (double)delay_us / 1e6;

    text_put_duration(&max, (uint64_t)max_us);
    (void)say(ret, VERIFY_STALE,
              "The event's time is %.1f s %s it was received, and %s are the most for this key.",
              seconds < 0 ? -seconds : seconds, seconds < 0 ? "after" : "before", buf_str(&max));
    buf_deinit(&max);
    return 0;
}

/* An instant as a NUL-terminated text, which the attribute is not; longer ones are none. */
static bool time_of(const struct event *event, int64_t *ret_us)
{
    char text[64]; /* RFC 3339 with a fraction of more digits than any clock has */
    struct bytes time = event_get(event, "time");

    if (time.size == 0 || time.size >= sizeof text || memchr(time.data, '\0', time.size))
        return false;
    memcpy(text, time.data, time.size);
    text[time.size] = '\0';
    return clock_parse_rfc3339(text, ret_us) == 0;
}

static int check_delay(const struct trust_key *key, const struct verify_scope *scope,
                       const struct event *event, struct verify_result *ret)
{
    int64_t time, delay;

    if (key->max_delay_us == 0 || scope->received_time_us == VERIFY_NO_TIME)
        return say_plainly(ret, VERIFY_VALID,
                           "The signature is right, and the key may sign for this prefix.");
    if (!time_of(event, &time))
        return say_plainly(ret, VERIFY_STALE,
                           "The event has no time that could be read, and its key has a max-delay.");
    /* Neither RFC 3339 nor a clock leaves the years 0 to 9999 by much; a wild number may. */
    if (__builtin_sub_overflow(scope->received_time_us, time, &delay))
        delay = scope->received_time_us < time ? -INT64_MAX : INT64_MAX;
    if (delay > key->max_delay_us || delay < -key->max_delay_us)
        return say_stale(ret, delay, key->max_delay_us);
    return say_plainly(ret, VERIFY_VALID,
                       "The signature is right, the key may sign for this prefix, and it is in "
                       "time.");
}

/* ---- the order of the checks ---- */

/* What the signature says nothing about. */
static int check_use(const struct trust_key *key, const struct verify_scope *scope,
                     struct bytes payload, struct verify_result *ret)
{
    struct event event;
    enum cbor_fault fault = event_decode_map(payload, &event);

    if (fault != CBOR_OK)
        return say(ret, VERIFY_MALFORMED, "The payload is signed, but is no event: %s.",
                   cbor_fault_text(fault));
    if (!trust_key_may_sign(key, scope->prefix))
        return say_not_allowed(ret, scope->prefix);
    return check_delay(key, scope, &event, ret);
}

static int verify_signed(const struct trust *trust, const struct verify_scope *scope,
                         struct bytes content, struct buf *scratch, struct verify_result *ret)
{
    const struct trust_key *key;
    struct cose_sign1 message;
    enum cose_sign1_fault refused = signed_event_parse(content, &message);

    if (refused != COSE_SIGN1_OK)
        return say_plainly(ret, VERIFY_MALFORMED, cose_sign1_fault_text(refused));
    ret->kid = message.kid;
    key = trust ? trust_find(trust, message.kid) : NULL;
    if (!key)
        return say_plainly(ret, VERIFY_UNKNOWN_KEY,
                           trust ? "No trusted key has this id."
                                 : "There is no trust file, so no key is known.");

    const struct signed_event_scope signed_for = {
        .prefix = scope->prefix,
        .audience = key->has_audience ? key->audience : scope->audience,
    };
    int r = signed_event_verify(&message, &key->key, &signed_for, scratch);

    if (r < 0)
        return r;
    if (r == COSE_SIGN1_SIGNATURE)
        return say_bad_signature(ret, signed_for.audience);
    if (r != 0)
        return say_plainly(ret, VERIFY_MALFORMED, cose_sign1_fault_text((enum cose_sign1_fault)r));
    return check_use(key, scope, message.payload, ret);
}

int verify_content(const struct trust *trust, const struct verify_scope *scope,
                   struct bytes content, struct buf *scratch, struct verify_result *ret)
{
    /* Nothing is valid until the last check has said so. */
    ret->status = VERIFY_MALFORMED;
    ret->kid = (struct bytes){NULL, 0};
    ret->reason[0] = '\0';
    if (content_kind_of(content) == CONTENT_SIGNED)
        return verify_signed(trust, scope, content, scratch, ret);
    return say_plainly(ret, VERIFY_UNSIGNED, "The content is not signed.");
}
