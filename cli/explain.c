/* SPDX-License-Identifier: PostgreSQL */
#include "explain.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/macros.h"
#include "base/text.h"
#include "codec/cbor.h"
#include "codec/cose.h"
#include "codec/cose_key.h"
#include "codec/cose_sign1.h"
#include "codec/event.h"
#include "codec/signed_event.h"

/* So much of a text stands beside its head. */
#define PREVIEW_MAX 48

/* ---- what it is ---- */

const char *explain_kind_text(enum explain_kind kind)
{
    static const char *const names[] = {
        [EXPLAIN_OPAQUE] = "opaque",
        [EXPLAIN_EVENT] = "event",
        [EXPLAIN_SIGNED_EVENT] = "signed-event",
        [EXPLAIN_COSE_SIGN1] = "cose-sign1",
        [EXPLAIN_COSE_KEY] = "cose-key",
        [EXPLAIN_CBOR] = "cbor",
    };

    return names[kind];
}

/* "text.", without the full stop, behind what is there already. */
static void put_reason(struct buf *out, const char *text)
{
    size_t size = strlen(text);

    buf_append(out, text, size > 0 && text[size - 1] == '.' ? size - 1 : size);
}

static void put_cbor_reason(struct buf *out, struct bytes content, enum cbor_fault fault)
{
    size_t offset;

    buf_append_str(out, cbor_fault_text(fault));
    if (cbor_check(content, &offset) == fault)
        buf_printf(out, ", at byte %zx", offset);
}

static enum explain_kind what_signed(struct bytes content, struct buf *out)
{
    struct cose_sign1 m;
    struct event event;
    enum cose_sign1_fault refused = signed_event_parse(content, &m);

    if (refused == COSE_SIGN1_OK) {
        enum cbor_fault fault = event_decode_map(m.payload, &event);

        buf_append_str(out, fault == CBOR_OK ? "a signed event, by the key " : "a COSE_Sign1 by the key ");
        text_put_hex(out, m.kid);
        if (fault == CBOR_OK)
            return EXPLAIN_SIGNED_EVENT;
        buf_append_str(out, ", but no signed event: its payload is no event: ");
        put_cbor_reason(out, m.payload, fault);
        return EXPLAIN_COSE_SIGN1;
    }
    if (cose_sign1_parse(content, &m) == COSE_SIGN1_OK) {
        buf_append_str(out, "a COSE_Sign1, but no signed event: ");
        put_reason(out, cose_sign1_fault_text(refused));
        return EXPLAIN_COSE_SIGN1;
    }
    buf_append_str(out, "opaque; it begins as a signed event does: ");
    put_reason(out, cose_sign1_fault_text(refused));
    return EXPLAIN_OPAQUE;
}

static bool is_container(struct bytes content)
{
    return content.size > 0 && content.data[0] >> 5 >= CBOR_ARRAY &&
           content.data[0] >> 5 <= CBOR_TAG;
}

static enum explain_kind what_else(struct bytes content, struct buf *out)
{
    struct cose_sign1 m;
    struct cose_key key;

    if (cose_sign1_parse(content, &m) == COSE_SIGN1_OK)
        return what_signed(content, out);
    if (cose_key_decode_public(content, &key) == COSE_KEY_OK) {
        buf_append_str(out, "a public key, with the id ");
        text_put_hex(out, cose_key_kid(&key));
        return EXPLAIN_COSE_KEY;
    }
    if (is_container(content) && cbor_check(content, NULL) == CBOR_OK) {
        buf_append_str(out, "opaque: well-formed CBOR, but no event");
        return EXPLAIN_CBOR;
    }
    if (content.size == 0)
        buf_append_str(out, "opaque: nothing at all");
    else
        buf_append_str(out, text_is_utf8(content) ? "opaque: text" : "opaque: bytes");
    return EXPLAIN_OPAQUE;
}

enum explain_kind explain_what(struct bytes content, struct buf *out)
{
    struct event event;

    switch (content_kind_of(content)) {
    case CONTENT_SIGNED:
        return what_signed(content, out);
    case CONTENT_UNSIGNED: {
        enum cbor_fault fault = event_decode(content, &event);

        if (fault == CBOR_OK) {
            buf_append_str(out, "an event");
            return EXPLAIN_EVENT;
        }
        buf_append_str(out, "opaque; it begins as an event does: ");
        put_cbor_reason(out, content, fault);
        return EXPLAIN_OPAQUE;
    }
    default:
        return what_else(content, out);
    }
}

/* ---- rows ---- */

/* What an item is, and so what its parts are called. */
enum role {
    ROLE_NONE,
    ROLE_SIGN1,     /* the array of a COSE_Sign1 */
    ROLE_PROTECTED, /* a byte string around a header */
    ROLE_PAYLOAD,   /* a byte string, perhaps around an event's map */
    ROLE_HEADER,    /* a map */
    ROLE_KEY,       /* a map */
};

struct walk {
    const struct explain_limits *limits;
    void (*row)(void *context, const struct explain_row *row);
    void *context;
    struct bytes content;
    size_t next; /* offset behind the last row's bytes */
    size_t n_rows;
    bool full; /* no more rows are shown */
    struct buf text;
    bool failed;
};

/* Bytes that should be one item. */
struct region {
    const uint8_t *end;
    enum cbor_fault fault;
    const uint8_t *fault_at;
};

static struct region region_of(struct bytes item)
{
    struct region reg = {.end = item.data + item.size};
    size_t offset;

    reg.fault = cbor_check(item, &offset);
    if (reg.fault != CBOR_OK)
        reg.fault_at = item.data + offset;
    return reg;
}

/* Behind the last row that is shown, one that says so. */
static void put_row_about(struct walk *w, unsigned depth, size_t size, size_t left_out)
{
    struct explain_row row = {
        .offset = w->next,
        .bytes = {w->content.data + w->next, size},
        .left_out = left_out,
        .depth = depth,
        .text = buf_bytes(&w->text),
    };

    w->failed = w->failed || w->text.failed;
    if (!w->full && w->n_rows == w->limits->rows_max) {
        w->full = true;
        row = (struct explain_row){.offset = w->next,
                                   .bytes = {w->content.data + w->next, 0},
                                   .left_out = w->content.size - w->next,
                                   .text = bytes_of_text("not shown")};
        w->row(w->context, &row);
        w->next = w->content.size;
    } else if (!w->full) {
        w->n_rows++;
        w->row(w->context, &row);
        w->next += size + left_out;
    }
    buf_clear(&w->text);
}

/* A row of what stands in w->text, which it empties, about the next `size` bytes. */
static void put_row(struct walk *w, unsigned depth, size_t size)
{
    put_row_about(w, depth, size, 0);
}

/* The next `size` bytes as they are, up to the limit. */
static void put_raw(struct walk *w, unsigned depth, size_t size)
{
    size_t left = MIN(size, w->limits->string_max), left_out = size - left;

    for (; left > 0 && !w->full; left -= MIN(left, EXPLAIN_ROW_BYTES)) {
        size_t n = MIN(left, EXPLAIN_ROW_BYTES);

        buf_append_u8(&w->text, '|');
        for (size_t i = 0; i < n; i++) {
            uint8_t c = w->content.data[w->next + i];

            buf_append_u8(&w->text, c >= 0x20 && c < 0x7f ? c : '.');
        }
        buf_append_u8(&w->text, '|');
        put_row(w, depth, n);
    }
    if (left_out > 0 && !w->full) {
        buf_append_str(&w->text, "not shown");
        put_row_about(w, depth, 0, left_out);
    }
}

static const char *const kinds[] = {
    [CBOR_BYTES] = "byte string", [CBOR_TEXT] = "text", [CBOR_ARRAY] = "array", [CBOR_MAP] = "map"};
static const char *const units[] = {
    [CBOR_BYTES] = "byte", [CBOR_TEXT] = "byte", [CBOR_ARRAY] = "item", [CBOR_MAP] = "pair"};

/* What an item announces that is cut off behind its head: how much of a string is there, how many
 * items were to come. Nothing when the head itself is cut off. */
static void put_announced(struct buf *out, struct bytes rest)
{
    unsigned type = rest.size > 0 ? rest.data[0] >> 5 : 0,
             info = rest.size > 0 ? rest.data[0] & 0x1f : 31;
    size_t width = info < 24 ? 0 : (size_t)1 << (info - 24);
    uint64_t n = info;

    if (type < CBOR_BYTES || type > CBOR_MAP || info > 27 || rest.size - 1 < width)
        return;
    if (width > 0)
        n = 0;
    for (size_t i = 0; i < width; i++)
        n = n << 8 | rest.data[1 + i];
    buf_printf(out, ": %s %s of %" PRIu64 " %s%s", type == CBOR_ARRAY ? "an" : "a", kinds[type], n,
               units[type], n == 1 ? "" : "s");
    if (type <= CBOR_TEXT)
        buf_printf(out, ", %zu of them there", rest.size - 1 - width);
}

/* The reason why this is not well-formed, and what is left of it. Always false. */
static bool put_fault(struct walk *w, const struct region *reg)
{
    struct bytes rest = {w->content.data + w->next,
                         (size_t)(reg->end - (w->content.data + w->next))};

    buf_printf(&w->text, "!! malformed here: %s", cbor_fault_text(reg->fault));
    if (reg->fault == CBOR_FAULT_TRUNCATED)
        put_announced(&w->text, rest);
    put_row(w, 0, 0);
    if (!w->full)
        put_raw(w, 1, rest.size);
    return false;
}

/* A text's beginning in quotes. */
static void put_preview(struct buf *out, struct bytes text)
{
    size_t n = MIN(text.size, (size_t)PREVIEW_MAX);

    while (n > 0 && n < text.size && (text.data[n] & 0xc0) == 0x80)
        n--;
    buf_append_u8(out, '"');
    text_put_visible(out, (struct bytes){text.data, n});
    buf_append_str(out, n < text.size ? "…\"" : "\"");
}

static const char *tag_name(uint64_t tag)
{
    static const struct {
        uint64_t tag;
        const char *name;
    } names[] = {
        {0, "date and time as text"},
        {1, "date and time as a number"},
        {2, "bignum"},
        {3, "negative bignum"},
        {18, "COSE_Sign1"},
        {24, "CBOR in a byte string"},
        {37, "UUID"},
        {55799, "CBOR follows"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (names[i].tag == tag)
            return names[i].name;
    return NULL;
}

static const char *label_name(enum role role, int64_t label)
{
    static const struct {
        enum role role;
        int64_t label;
        const char *name;
    } names[] = {
        {ROLE_HEADER, 1, "alg"},  {ROLE_HEADER, 2, "crit"}, {ROLE_HEADER, 3, "content type"},
        {ROLE_HEADER, 4, "kid"},  {ROLE_HEADER, 5, "IV"},   {ROLE_HEADER, 6, "partial IV"},
        {ROLE_HEADER, 16, "typ"}, {ROLE_KEY, 1, "kty"},     {ROLE_KEY, 2, "kid"},
        {ROLE_KEY, 3, "alg"},     {ROLE_KEY, 4, "key_ops"}, {ROLE_KEY, -1, "crv"},
        {ROLE_KEY, -2, "x"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (names[i].role == role && names[i].label == label)
            return names[i].name;
    return NULL;
}

static const char *value_name(const char *label, int64_t value)
{
    static const struct {
        const char *label;
        int64_t value;
        const char *name;
    } names[] = {
        {"alg", COSE_ALG_EDDSA, "EdDSA"},
        {"alg", COSE_ALG_ED25519, "Ed25519"},
        {"kty", 1, "OKP"},
        {"crv", 6, "Ed25519"},
    };

    for (size_t i = 0; label && i < ARRAY_SIZE(names); i++)
        if (strcmp(names[i].label, label) == 0 && names[i].value == value)
            return names[i].name;
    return NULL;
}

/* What a head says; `item` is it, for a number. */
static void put_head(struct buf *out, const struct cbor_head *h, struct bytes item)
{

    switch (h->type) {
    case CBOR_BYTES:
    case CBOR_TEXT:
    case CBOR_ARRAY:
    case CBOR_MAP:
        if (h->indefinite)
            buf_printf(out, "%s up to its end mark", kinds[h->type]);
        else
            buf_printf(out, "%s of %" PRIu64 " %s%s", kinds[h->type], h->arg, units[h->type],
                       h->arg == 1 ? "" : "s");
        if (h->type == CBOR_TEXT && !h->indefinite) {
            buf_append_str(out, ": ");
            put_preview(out, h->str);
        }
        break;
    case CBOR_TAG:
        buf_printf(out, "tag %" PRIu64, h->arg);
        if (tag_name(h->arg))
            buf_printf(out, " (%s)", tag_name(h->arg));
        break;
    case CBOR_BREAK:
        buf_append_str(out, "end mark");
        break;
    default:
        if (cbor_print_diagnostic(item, out) != CBOR_OK) /* which it is: the head was read */
            buf_append_u8(out, '?');
        break;
    }
}

/* How an item is called, and what is to be known about it. */
struct part {
    const char *name; /* stands before it; or NULL */
    const char *note; /* stands behind it; or NULL */
    enum role role;
};

static bool is_at_fault(const struct region *reg, const uint8_t *at)
{
    return reg->fault != CBOR_OK && at >= reg->fault_at;
}

/* One item of `reg`. False: here the explanation of the region ends. */
static bool put_item(struct walk *w, const struct region *reg, struct cbor_reader *r,
                     unsigned depth, const struct part *part);

/* What a byte string holds. */
static bool put_embedded(struct walk *w, struct bytes item, unsigned depth, enum role role)
{
    struct region reg = region_of(item);
    struct cbor_reader r = cbor_reader_init(item);

    if (put_item(w, &reg, &r, depth, &(struct part){.role = role}) && reg.fault != CBOR_OK)
        (void)put_fault(w, &reg); /* it has bytes behind it */
    return !w->full;
}

/* The content of a definite string whose head has its row. */
static bool put_string(struct walk *w, const struct region *reg, struct bytes string,
                       unsigned depth, enum role role)
{
    bool holds_map = string.size > 0 && string.data[0] >> 5 == CBOR_MAP;

    if (holds_map && (role == ROLE_PROTECTED || role == ROLE_PAYLOAD))
        return put_embedded(w, string, depth, role == ROLE_PROTECTED ? ROLE_HEADER : ROLE_NONE);
    if (string.size > 0 && is_at_fault(reg, string.data + string.size - 1)) { /* it is no UTF-8 */
        put_raw(w, depth, (size_t)(reg->fault_at - string.data));
        return put_fault(w, reg);
    }
    put_raw(w, depth, string.size);
    return !w->full;
}

static bool is_break(const struct cbor_reader *r)
{
    return r->at < r->end && *r->at == 0xff;
}

/* The chunks of a string of indefinite length, and its end mark. */
static bool put_chunks(struct walk *w, const struct region *reg, struct cbor_reader *r,
                       unsigned depth)
{
    static const struct part chunk = {.name = "chunk"}, end = {.name = NULL};

    while (!is_break(r))
        if (!put_item(w, reg, r, depth, &chunk))
            return false;
    return put_item(w, reg, r, depth, &end);
}

static bool next_number(struct cbor_reader r, int64_t *ret)
{
    return cbor_read_int(&r, ret) == CBOR_OK;
}

static bool put_pair(struct walk *w, const struct region *reg, struct cbor_reader *r,
                     unsigned depth, enum role role)
{
    struct part key = {.role = ROLE_NONE}, value = {.role = ROLE_NONE};
    int64_t n;

    if ((role == ROLE_HEADER || role == ROLE_KEY) && next_number(*r, &n))
        key.note = label_name(role, n);
    if (!put_item(w, reg, r, depth, &key))
        return false;
    if (key.note && next_number(*r, &n))
        value.note = value_name(key.note, n);
    return put_item(w, reg, r, depth + 1, &value);
}

static bool put_items(struct walk *w, const struct region *reg, struct cbor_reader *r,
                      const struct cbor_head *h, unsigned depth, enum role role)
{
    static const struct part fields[] = {{.name = "protected header", .role = ROLE_PROTECTED},
                                         {.name = "unprotected header", .role = ROLE_HEADER},
                                         {.name = "payload", .role = ROLE_PAYLOAD},
                                         {.name = "signature"}};
    static const struct part plain = {.role = ROLE_NONE};

    for (uint64_t i = 0; h->indefinite ? !is_break(r) : i < h->arg; i++) {
        bool field = role == ROLE_SIGN1 && i < ARRAY_SIZE(fields);

        if (h->type == CBOR_MAP ? !put_pair(w, reg, r, depth, role)
                                : !put_item(w, reg, r, depth, field ? &fields[i] : &plain))
            return false;
    }
    return !h->indefinite || put_item(w, reg, r, depth, &plain);
}

static bool put_item(struct walk *w, const struct region *reg, struct cbor_reader *r,
                     unsigned depth, const struct part *part)
{
    const uint8_t *at = r->at;
    struct cbor_head h;
    struct bytes string = {NULL, 0};

    if (is_at_fault(reg, at) || cbor_read_head(r, &h) != CBOR_OK)
        return put_fault(w, reg);
    if ((h.type == CBOR_BYTES || h.type == CBOR_TEXT) && !h.indefinite)
        string = h.str;

    size_t size = (size_t)(r->at - at) - string.size;

    if (part->name)
        buf_printf(&w->text, "%s: ", part->name);
    put_head(&w->text, &h, (struct bytes){at, size});
    if (part->note)
        buf_printf(&w->text, " (%s)", part->note);
    put_row(w, depth, size);
    if (w->full)
        return false;
    switch (h.type) {
    case CBOR_BYTES:
    case CBOR_TEXT:
        return h.indefinite ? put_chunks(w, reg, r, depth + 1)
                            : put_string(w, reg, string, depth + 1, part->role);
    case CBOR_ARRAY:
    case CBOR_MAP:
        return put_items(w, reg, r, &h, depth + 1, part->role);
    case CBOR_TAG:
        return put_item(w, reg, r, depth + 1, &(struct part){.role = part->role});
    default:
        return true;
    }
}

int explain_rows(struct bytes content, const struct explain_limits *limits,
                 void (*row)(void *context, const struct explain_row *row), void *context)
{
    struct walk w = {.limits = limits, .row = row, .context = context, .content = content};
    enum content_kind begins = content_kind_of(content);
    enum explain_kind kind = explain_what(content, &w.text);

    buf_clear(&w.text);
    if (kind == EXPLAIN_OPAQUE && begins == CONTENT_OPAQUE) {
        put_raw(&w, 0, content.size);
    } else {
        enum role role = kind == EXPLAIN_COSE_KEY                                 ? ROLE_KEY
                         : kind == EXPLAIN_COSE_SIGN1 || begins == CONTENT_SIGNED ? ROLE_SIGN1
                                                                                  : ROLE_NONE;

        (void)put_embedded(&w, content, 0, role);
    }
    buf_deinit(&w.text);
    return w.failed ? -ENOMEM : 0;
}
