/* SPDX-License-Identifier: PostgreSQL */
#include "codec/control.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "codec/cbor.h"
#include "codec/frame.h"

/*
 * Each body is a table of its keys, from which it is both written and read, so
 * that the two cannot drift apart. The rows stand in the order of deterministic
 * CBOR (RFC 8949 4.2.1): shorter keys first, then bytewise.
 */

enum field_type {
    FIELD_UINT,     /* uint64_t */
    FIELD_INT,      /* int64_t */
    FIELD_BOOL,     /* bool */
    FIELD_TEXT,     /* struct bytes */
    FIELD_POSITION, /* struct position */
    FIELD_ITEM,     /* struct bytes: one whole item of any type */
};

enum field_presence {
    FIELD_REQUIRED, /* always written, missing is an error */
    FIELD_OPTIONAL, /* left out when zero, false or empty; zero when missing */
    FIELD_FLAGGED,  /* written when the bool at `flag` is set, which tells the reader as well */
};

struct field {
    const char *key;
    enum field_type type;
    enum field_presence presence;
    size_t offset;
    size_t flag;
};

/* Most rows of one table: a bit of `seen` each. */
#define FIELDS_MAX 32

#define REQUIRED(type, owner, key, member)                    \
    {                                                         \
        key, type, FIELD_REQUIRED, offsetof(owner, member), 0 \
    }
#define OPTIONAL(type, owner, key, member)                    \
    {                                                         \
        key, type, FIELD_OPTIONAL, offsetof(owner, member), 0 \
    }
#define FLAGGED(type, owner, key, member, flag)                                  \
    {                                                                            \
        key, type, FIELD_FLAGGED, offsetof(owner, member), offsetof(owner, flag) \
    }

/* ---- writing ---- */

static bool field_is_zero(const struct field *f, const char *owner)
{
    const void *at = owner + f->offset;

    switch (f->type) {
    case FIELD_UINT:
        return *(const uint64_t *)at == 0;
    case FIELD_INT:
        return *(const int64_t *)at == 0;
    case FIELD_BOOL:
        return !*(const bool *)at;
    case FIELD_TEXT:
    case FIELD_ITEM:
        return ((const struct bytes *)at)->size == 0;
    case FIELD_POSITION:
        return position_is_zero(*(const struct position *)at);
    }
    return true;
}

static bool field_is_written(const struct field *f, const char *owner)
{
    switch (f->presence) {
    case FIELD_REQUIRED:
        return true;
    case FIELD_OPTIONAL:
        return !field_is_zero(f, owner);
    case FIELD_FLAGGED:
        return *(const bool *)(owner + f->flag);
    }
    return false;
}

static void put_field(struct buf *out, const struct field *f, const char *owner)
{
    const void *at = owner + f->offset;
    uint8_t raw[POSITION_SIZE];

    cbor_put_str(out, f->key);
    switch (f->type) {
    case FIELD_UINT:
        cbor_put_uint(out, *(const uint64_t *)at);
        break;
    case FIELD_INT:
        cbor_put_int(out, *(const int64_t *)at);
        break;
    case FIELD_BOOL:
        cbor_put_bool(out, *(const bool *)at);
        break;
    case FIELD_TEXT:
        cbor_put_text(out, *(const struct bytes *)at);
        break;
    case FIELD_POSITION:
        position_encode(*(const struct position *)at, raw);
        cbor_put_bytes(out, (struct bytes){raw, sizeof raw});
        break;
    case FIELD_ITEM:
        buf_append(out, ((const struct bytes *)at)->data, ((const struct bytes *)at)->size);
        break;
    }
}

static void put_frame(struct buf *out, enum frame_type type, const struct field *fields, size_t n,
                      const void *owner)
{
    size_t start = out->size, present = 0;

    for (size_t i = 0; i < n; i++)
        present += field_is_written(&fields[i], owner);

    /* The length is known only behind the body, so its place is kept and filled in later. */
    if (!buf_reserve(out, FRAME_HEADER_SIZE))
        return;
    out->size += FRAME_HEADER_SIZE;
    cbor_put_map(out, present);
    for (size_t i = 0; i < n; i++)
        if (field_is_written(&fields[i], owner))
            put_field(out, &fields[i], owner);
    if (out->failed)
        return;
    struct frame_header h = {
        .size = (uint32_t)(out->size - start - FRAME_HEADER_SIZE),
        .type = (uint8_t)type,
    };
    frame_header_encode(out->data + start, h);
}

/* ---- reading ---- */

static const char *field_type_text(enum field_type type)
{
    switch (type) {
    case FIELD_UINT:
        return "an unsigned integer";
    case FIELD_INT:
        return "an integer of 64 bits";
    case FIELD_BOOL:
        return "true or false";
    case FIELD_TEXT:
        return "text";
    case FIELD_POSITION:
        return "a byte string of 16 bytes";
    case FIELD_ITEM:
        return "an item";
    }
    return "something else";
}

static enum cbor_fault read_int(struct cbor_reader *r, int64_t *ret)
{
    struct cbor_head head;
    enum cbor_fault fault = cbor_read_head(r, &head);

    if (fault != CBOR_OK)
        return fault;
    if ((head.type != CBOR_UINT && head.type != CBOR_NINT) || head.arg > INT64_MAX)
        return CBOR_FAULT_TYPE;
    *ret = head.type == CBOR_UINT ? (int64_t)head.arg : -1 - (int64_t)head.arg;
    return CBOR_OK;
}

static enum cbor_fault read_position(struct cbor_reader *r, struct position *ret)
{
    struct bytes raw;
    enum cbor_fault fault = cbor_read_bytes(r, &raw);

    if (fault != CBOR_OK)
        return fault;
    if (raw.size != POSITION_SIZE)
        return CBOR_FAULT_TYPE;
    *ret = position_decode(raw.data);
    return CBOR_OK;
}

static enum cbor_fault read_field(struct cbor_reader *r, const struct field *f, char *owner)
{
    void *at = owner + f->offset;

    switch (f->type) {
    case FIELD_UINT:
        return cbor_read_uint(r, at);
    case FIELD_INT:
        return read_int(r, at);
    case FIELD_BOOL:
        return cbor_read_bool(r, at);
    case FIELD_TEXT:
        return cbor_read_text(r, at);
    case FIELD_POSITION:
        return read_position(r, at);
    case FIELD_ITEM:
        return cbor_read_item(r, at);
    }
    return CBOR_FAULT_TYPE;
}

static const struct field *find_field(const struct field *fields, size_t n, struct bytes key)
{
    for (size_t i = 0; i < n; i++)
        if (bytes_equal(key, bytes_of_text(fields[i].key)))
            return &fields[i];
    return NULL;
}

/* Reads a body into *owner, which the caller has zeroed. 0, or -EBADMSG with `why`. */
static int get_fields(struct bytes body, const struct field *fields, size_t n, void *owner,
                      char why[CONTROL_WHY_SIZE])
{
    struct cbor_reader r = cbor_reader_init(body);
    uint32_t seen = 0;
    uint64_t pairs;
    size_t offset;
    enum cbor_fault fault = cbor_check(body, &offset);

    if (fault != CBOR_OK) {
        (void)snprintf(why, CONTROL_WHY_SIZE, "The body is not one CBOR item: %s, at byte %zu.",
                       cbor_fault_text(fault), offset);
        return -EBADMSG;
    }
    if (cbor_read_map(&r, &pairs) != CBOR_OK) {
        (void)snprintf(why, CONTROL_WHY_SIZE, "The body is not a map of definite length.");
        return -EBADMSG;
    }
    for (; pairs > 0; pairs--) {
        struct bytes key;

        if (cbor_read_text(&r, &key) != CBOR_OK) {
            (void)snprintf(why, CONTROL_WHY_SIZE,
                           "A key, at byte %zu, is not text of definite length.",
                           (size_t)(r.at - r.start));
            return -EBADMSG;
        }
        const struct field *f = find_field(fields, n, key);
        if (!f) {
            if (cbor_read_item(&r, NULL) != CBOR_OK) {
                (void)snprintf(why, CONTROL_WHY_SIZE, "The value at byte %zu is malformed.",
                               (size_t)(r.at - r.start));
                return -EBADMSG;
            }
            continue;
        }
        uint32_t bit = UINT32_C(1) << (f - fields);
        if (seen & bit) {
            (void)snprintf(why, CONTROL_WHY_SIZE, "The key \"%s\" stands twice.", f->key);
            return -EBADMSG;
        }
        seen |= bit;
        if (read_field(&r, f, owner) != CBOR_OK) {
            (void)snprintf(why, CONTROL_WHY_SIZE, "The value of \"%s\" is not %s.", f->key,
                           field_type_text(f->type));
            return -EBADMSG;
        }
        if (f->presence == FIELD_FLAGGED)
            *(bool *)((char *)owner + f->flag) = true;
    }
    for (size_t i = 0; i < n; i++)
        if (fields[i].presence == FIELD_REQUIRED && !(seen & UINT32_C(1) << i)) {
            (void)snprintf(why, CONTROL_WHY_SIZE, "The key \"%s\" is missing.", fields[i].key);
            return -EBADMSG;
        }
    return 0;
}

/* ---- the tables ---- */

static const struct field hello_fields[] = {
    REQUIRED(FIELD_UINT, struct control_hello, "max", max),
    REQUIRED(FIELD_UINT, struct control_hello, "min", min),
    OPTIONAL(FIELD_TEXT, struct control_hello, "client", client),
    REQUIRED(FIELD_UINT, struct control_hello, "layout", layout),
};

static const struct field welcome_fields[] = {
    REQUIRED(FIELD_UINT, struct control_welcome, "layout", layout),
    REQUIRED(FIELD_TEXT, struct control_welcome, "server", server),
    REQUIRED(FIELD_UINT, struct control_welcome, "version", version),
    REQUIRED(FIELD_TEXT, struct control_welcome, "identity", identity),
    REQUIRED(FIELD_POSITION, struct control_welcome, "position", position),
    REQUIRED(FIELD_UINT, struct control_welcome, "timeline", timeline),
    REQUIRED(FIELD_UINT, struct control_welcome, "max_frame", max_frame),
    REQUIRED(FIELD_UINT, struct control_welcome, "max_filters", max_filters),
};

static const struct field subscribed_fields[] = {
    REQUIRED(FIELD_BOOL, struct control_subscribed, "stored", stored),
    REQUIRED(FIELD_TEXT, struct control_subscribed, "identity", identity),
    REQUIRED(FIELD_POSITION, struct control_subscribed, "position", position),
    REQUIRED(FIELD_UINT, struct control_subscribed, "timeline", timeline),
    OPTIONAL(FIELD_POSITION, struct control_subscribed, "redelivered_to", redelivered_to),
};

static const struct field ack_fields[] = {
    OPTIONAL(FIELD_BOOL, struct control_ack, "confirm", confirm),
    REQUIRED(FIELD_POSITION, struct control_ack, "position", position),
};

static const struct field request_fields[] = {
    REQUIRED(FIELD_UINT, struct control_request, "id", id),
    OPTIONAL(FIELD_ITEM, struct control_request, "args", args),
    REQUIRED(FIELD_TEXT, struct control_request, "what", what),
};

static const struct field reply_fields[] = {
    REQUIRED(FIELD_UINT, struct control_reply, "id", id),
    REQUIRED(FIELD_ITEM, struct control_reply, "result", result),
};

static const struct field error_fields[] = {
    FLAGGED(FIELD_UINT, struct control_error, "id", id, has_id),
    REQUIRED(FIELD_TEXT, struct control_error, "code", code),
    REQUIRED(FIELD_TEXT, struct control_error, "text", text),
    REQUIRED(FIELD_BOOL, struct control_error, "fatal", fatal),
};

/* SUBSCRIBE as it travels; the filters and the start word are translated apart. */
struct wire_subscribe {
    struct bytes filters, exclude; /* items */
    struct bytes name, start;      /* texts */
    struct position position;
    int64_t time;
    bool take_over, has_position, has_time, has_start;
};

static const struct field subscribe_fields[] = {
    OPTIONAL(FIELD_TEXT, struct wire_subscribe, "name", name),
    FLAGGED(FIELD_INT, struct wire_subscribe, "time", time, has_time),
    FLAGGED(FIELD_TEXT, struct wire_subscribe, "start", start, has_start),
    OPTIONAL(FIELD_ITEM, struct wire_subscribe, "exclude", exclude),
    REQUIRED(FIELD_ITEM, struct wire_subscribe, "filters", filters),
    FLAGGED(FIELD_POSITION, struct wire_subscribe, "position", position, has_position),
    OPTIONAL(FIELD_BOOL, struct wire_subscribe, "take_over", take_over),
};

_Static_assert(ARRAY_SIZE(welcome_fields) <= FIELDS_MAX, "a bit of `seen` for each row");
_Static_assert(ARRAY_SIZE(subscribe_fields) <= FIELDS_MAX, "a bit of `seen` for each row");

/* A decoder writes its output only on success. */
#define DECODE(body, fields, ret, why)                                               \
    do {                                                                             \
        __typeof__(*(ret)) decoded_ = {0};                                           \
        int r_ = get_fields((body), (fields), ARRAY_SIZE(fields), &decoded_, (why)); \
        if (r_ < 0)                                                                  \
            return r_;                                                               \
        *(ret) = decoded_;                                                           \
        return 0;                                                                    \
    } while (0)

void control_hello_encode(const struct control_hello *c, struct buf *out)
{
    put_frame(out, FRAME_HELLO, hello_fields, ARRAY_SIZE(hello_fields), c);
}

int control_hello_decode(struct bytes body, struct control_hello *ret, char why[CONTROL_WHY_SIZE])
{
    DECODE(body, hello_fields, ret, why);
}

void control_welcome_encode(const struct control_welcome *c, struct buf *out)
{
    put_frame(out, FRAME_WELCOME, welcome_fields, ARRAY_SIZE(welcome_fields), c);
}

int control_welcome_decode(struct bytes body, struct control_welcome *ret,
                           char why[CONTROL_WHY_SIZE])
{
    DECODE(body, welcome_fields, ret, why);
}

void control_subscribed_encode(const struct control_subscribed *c, struct buf *out)
{
    put_frame(out, FRAME_SUBSCRIBED, subscribed_fields, ARRAY_SIZE(subscribed_fields), c);
}

int control_subscribed_decode(struct bytes body, struct control_subscribed *ret,
                              char why[CONTROL_WHY_SIZE])
{
    DECODE(body, subscribed_fields, ret, why);
}

void control_ack_encode(const struct control_ack *c, bool acked, struct buf *out)
{
    struct control_ack sent = {.position = c->position, .confirm = !acked && c->confirm};

    put_frame(out, acked ? FRAME_ACKED : FRAME_ACK, ack_fields, ARRAY_SIZE(ack_fields), &sent);
}

int control_ack_decode(struct bytes body, struct control_ack *ret, char why[CONTROL_WHY_SIZE])
{
    DECODE(body, ack_fields, ret, why);
}

void control_request_encode(const struct control_request *c, struct buf *out)
{
    put_frame(out, FRAME_REQUEST, request_fields, ARRAY_SIZE(request_fields), c);
}

int control_request_decode(struct bytes body, struct control_request *ret,
                           char why[CONTROL_WHY_SIZE])
{
    DECODE(body, request_fields, ret, why);
}

void control_reply_encode(const struct control_reply *c, struct buf *out)
{
    put_frame(out, FRAME_REPLY, reply_fields, ARRAY_SIZE(reply_fields), c);
}

int control_reply_decode(struct bytes body, struct control_reply *ret, char why[CONTROL_WHY_SIZE])
{
    DECODE(body, reply_fields, ret, why);
}

void control_error_encode(const struct control_error *c, struct buf *out)
{
    put_frame(out, FRAME_ERROR, error_fields, ARRAY_SIZE(error_fields), c);
}

int control_error_decode(struct bytes body, struct control_error *ret, char why[CONTROL_WHY_SIZE])
{
    DECODE(body, error_fields, ret, why);
}

/* ---- SUBSCRIBE ---- */

static const char *const start_words[] = {
    [CONTROL_START_STORED] = "stored", [CONTROL_START_NOW] = "now",
    [CONTROL_START_OLDEST] = "oldest", [CONTROL_START_POSITION] = "position",
    [CONTROL_START_TIME] = "time",
};

static void put_filters(struct buf *out, const struct filter *filters, size_t n)
{
    cbor_put_array(out, n);
    for (size_t i = 0; i < n; i++) {
        cbor_put_array(out, 2);
        cbor_put_uint(out, filters[i].kind);
        cbor_put_bytes(out, filters[i].text);
    }
}

void control_subscribe_encode(const struct control_subscribe *c, struct buf *out)
{
    struct buf filters = BUF_INIT, exclude = BUF_INIT;

    put_filters(&filters, c->filters, c->n_filters);
    if (c->n_exclusions)
        put_filters(&exclude, c->exclusions, c->n_exclusions);

    struct wire_subscribe wire = {
        .filters = buf_bytes(&filters),
        .exclude = buf_bytes(&exclude),
        .name = c->name,
        .start = bytes_of_text(start_words[c->start]),
        .has_start = true,
        .position = c->position,
        .has_position = c->start == CONTROL_START_POSITION,
        .time = c->time,
        .has_time = c->start == CONTROL_START_TIME,
        .take_over = c->take_over,
    };
    if (filters.failed || exclude.failed) {
        buf_deinit(out);
        out->failed = true;
    } else {
        put_frame(out, FRAME_SUBSCRIBE, subscribe_fields, ARRAY_SIZE(subscribe_fields), &wire);
    }
    buf_deinit(&filters);
    buf_deinit(&exclude);
}

/* One [kind, text]. Fills `why` when it is wrong; `number` counts from 1. */
static int get_filter(struct cbor_reader *r, const char *key, uint64_t number, struct filter *ret,
                      char why[CONTROL_WHY_SIZE])
{
    uint64_t n, kind;
    struct bytes text;

    if (cbor_read_array(r, &n) != CBOR_OK || n != 2 || cbor_read_uint(r, &kind) != CBOR_OK ||
        (cbor_read_bytes(r, &text) != CBOR_OK && cbor_read_text(r, &text) != CBOR_OK)) {
        (void)snprintf(why, CONTROL_WHY_SIZE,
                       "Entry %llu of \"%s\" is not an array of a kind and a byte string.",
                       (unsigned long long)number, key);
        return -EBADMSG;
    }
    if (kind > FILTER_STARTS_WITH) {
        (void)snprintf(why, CONTROL_WHY_SIZE, "Entry %llu of \"%s\" is of the unknown kind %llu.",
                       (unsigned long long)number, key, (unsigned long long)kind);
        return -EBADMSG;
    }
    if (text.size > FILTER_TEXT_MAX) {
        (void)snprintf(why, CONTROL_WHY_SIZE,
                       "Entry %llu of \"%s\" has %zu bytes; %d are the most.",
                       (unsigned long long)number, key, text.size, FILTER_TEXT_MAX);
        return -EBADMSG;
    }
    *ret = (struct filter){.kind = (enum filter_kind)kind, .text = text};
    return 0;
}

/* A list of filters; *ret is malloc'ed, NULL when the list is empty. */
static int get_filters(struct bytes item, const char *key, struct filter **ret, size_t *ret_n,
                       char why[CONTROL_WHY_SIZE])
{
    struct cbor_reader r = cbor_reader_init(item);
    uint64_t n;

    if (cbor_read_array(&r, &n) != CBOR_OK) {
        (void)snprintf(why, CONTROL_WHY_SIZE, "The value of \"%s\" is not an array.", key);
        return -EBADMSG;
    }
    if (n > FILTERS_MAX) {
        (void)snprintf(why, CONTROL_WHY_SIZE, "\"%s\" has %llu entries; %d are the most.", key,
                       (unsigned long long)n, FILTERS_MAX);
        return -EBADMSG;
    }
    if (n == 0) {
        *ret = NULL;
        *ret_n = 0;
        return 0;
    }
    struct filter *filters = calloc((size_t)n, sizeof *filters);
    if (!filters)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        int e = get_filter(&r, key, i + 1, &filters[i], why);

        if (e < 0) {
            free(filters);
            return e;
        }
    }
    *ret = filters;
    *ret_n = (size_t)n;
    return 0;
}

static int check_tokens(const struct control_subscribe *c, char why[CONTROL_WHY_SIZE])
{
    size_t n = 0;

    for (size_t i = 0; i < c->n_filters; i++)
        n += filter_tokens(&c->filters[i]);
    for (size_t i = 0; i < c->n_exclusions; i++)
        n += filter_tokens(&c->exclusions[i]);
    if (n <= FILTERS_TOKENS_MAX)
        return 0;
    (void)snprintf(why, CONTROL_WHY_SIZE, "The patterns have %zu tokens; %d are the most.", n,
                   FILTERS_TOKENS_MAX);
    return -EBADMSG;
}

static int get_start(const struct wire_subscribe *wire, enum control_start *ret,
                     char why[CONTROL_WHY_SIZE])
{
    enum control_start start = CONTROL_START_NOW;

    if (wire->has_start) {
        size_t i = 0;

        while (i < ARRAY_SIZE(start_words) &&
               !bytes_equal(wire->start, bytes_of_text(start_words[i])))
            i++;
        if (i == ARRAY_SIZE(start_words)) {
            struct buf shown = BUF_INIT;

            text_put_visible(&shown, (struct bytes){wire->start.data, MIN(wire->start.size, 20u)});
            (void)snprintf(why, CONTROL_WHY_SIZE, "The \"start\" is an unknown word: %.80s.",
                           buf_str(&shown));
            buf_deinit(&shown);
            return -EBADMSG;
        }
        start = (enum control_start)i;
    }
    if (start == CONTROL_START_POSITION && !wire->has_position) {
        (void)snprintf(why, CONTROL_WHY_SIZE, "The key \"position\" is missing.");
        return -EBADMSG;
    }
    if (start == CONTROL_START_TIME && !wire->has_time) {
        (void)snprintf(why, CONTROL_WHY_SIZE, "The key \"time\" is missing.");
        return -EBADMSG;
    }
    *ret = start;
    return 0;
}

int control_subscribe_decode(struct bytes body, struct control_subscribe *ret,
                             char why[CONTROL_WHY_SIZE])
{
    struct wire_subscribe wire = {0};
    struct control_subscribe c = {0};
    int r;

    r = get_fields(body, subscribe_fields, ARRAY_SIZE(subscribe_fields), &wire, why);
    if (r < 0)
        return r;
    r = get_start(&wire, &c.start, why);
    if (r < 0)
        return r;
    r = get_filters(wire.filters, "filters", &c.filters, &c.n_filters, why);
    if (r < 0)
        return r;
    if (c.n_filters == 0) {
        (void)snprintf(why, CONTROL_WHY_SIZE, "\"filters\" is empty: nothing would be delivered.");
        return -EBADMSG;
    }
    if (wire.exclude.size)
        r = get_filters(wire.exclude, "exclude", &c.exclusions, &c.n_exclusions, why);
    if (r == 0)
        r = check_tokens(&c, why);
    if (r < 0) {
        control_subscribe_deinit(&c);
        return r;
    }
    c.name = wire.name;
    c.position = wire.position;
    c.time = wire.time;
    c.take_over = wire.take_over;
    *ret = c;
    return 0;
}

void control_subscribe_deinit(struct control_subscribe *c)
{
    free(c->filters);
    free(c->exclusions);
    *c = (struct control_subscribe){0};
}
