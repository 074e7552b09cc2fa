/* SPDX-License-Identifier: PostgreSQL */
#include "codec/trust.h"

#include <errno.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/text.h"
#include "codec/trust_line.h"

/* Longest COSE_Key in a line: of base64 four characters make three bytes. */
#define KEY_BYTES_MAX (TRUST_LINE_MAX / 4 * 3)
/* So much of what was found is shown that the sentence around it still fits. */
#define SHOWN_SIZE 80
/* Longer than all names, and as a section that lost its bracket. */
#define NAME_SHOWN_SIZE ((size_t)24)

struct trust {
    char *text;              /* what patterns and audiences borrow from */
    size_t text_size;
    struct trust_key *keys;  /* in the order of the file */
    struct trust_key **by_kid;
    size_t n_keys;
    struct filter *filters; /* of all keys, each key's together */
    size_t n_filters;
};

struct trust *trust_free(struct trust *trust)
{
    if (!trust)
        return NULL;
    if (trust->text) /* somebody may have put a private key there */
        sodium_memzero(trust->text, trust->text_size);
    free(trust->text);
    free(trust->keys);
    free(trust->by_kid);
    free(trust->filters);
    free(trust);
    return NULL;
}

/* ---- asking ---- */

size_t trust_count(const struct trust *trust)
{
    return trust->n_keys;
}

const struct trust_key *trust_at(const struct trust *trust, size_t i)
{
    return &trust->keys[i];
}

static int compare_kids(struct bytes a, struct bytes b)
{
    if (a.size != b.size)
        return a.size < b.size ? -1 : 1;
    return a.size ? memcmp(a.data, b.data, a.size) : 0;
}

const struct trust_key *trust_find(const struct trust *trust, struct bytes kid)
{
    size_t low = 0, high = trust->n_keys;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int c = compare_kids(kid, cose_key_kid(&trust->by_kid[middle]->key));

        if (c == 0)
            return trust->by_kid[middle];
        if (c < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

bool trust_key_may_sign(const struct trust_key *key, struct bytes prefix)
{
    for (size_t i = 0; i < key->n_allow; i++)
        if (filter_matches(&key->allow[i], prefix))
            return true;
    return false;
}

/* ---- values ---- */

static bool is_blank(uint8_t c)
{
    return c == ' ' || c == '\t';
}

const char *trust_pattern_fault(struct bytes pattern)
{
    if (pattern.size == 0)
        return "is empty";
    if (pattern.size > FILTER_TEXT_MAX)
        return "is longer than a pattern may be";
    if (trust_comment_in(pattern))
        return "begins as a comment does";
    for (size_t i = 0; i < pattern.size; i++) {
        if (is_blank(pattern.data[i]))
            return "has a blank: each pattern has a line of its own";
        if (pattern.data[i] < 0x20 || pattern.data[i] == 0x7f)
            return "has a control character";
        if (pattern.data[i] >= 0x80)
            return "is not ASCII, and no signature for such a prefix is valid";
    }
    return NULL;
}

const char *trust_audience_fault(struct bytes audience)
{
    uint32_t code_point;

    if (audience.size > TRUST_AUDIENCE_MAX)
        return "is longer than 255 bytes";
    if (trust_comment_in(audience))
        return "has what begins a comment";
    if (audience.size && (is_blank(audience.data[0]) || is_blank(audience.data[audience.size - 1])))
        return "begins or ends with a blank";
    for (size_t at = 0, n; at < audience.size; at += n) {
        n = text_utf8_sequence(audience.data + at, audience.size - at, &code_point);
        if (n == 0)
            return "is not UTF-8";
        if (!text_is_visible(code_point))
            return "has a control character";
    }
    return NULL;
}

/* ---- parsing ---- */

struct parser {
    struct trust *trust;
    struct trust_lines lines;
    struct trust_key *key; /* of the section; NULL: before the first */
    bool has_key, has_delay;
    int result;
    struct trust_fault *fault;
};

static void refuse_at(struct parser *p, size_t line, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* The first reason counts. */
static void refuse_at(struct parser *p, size_t line, const char *fmt, ...)
{
    char *why = p->fault->why;
    va_list ap;
    int n = 0;

    if (p->result < 0)
        return;
    p->result = -EINVAL;
    p->fault->line = line;
    if (line > 0)
        n = snprintf(why, TRUST_WHY_SIZE, "line %zu: ", line);
    va_start(ap, fmt);
    (void)vsnprintf(why + n, TRUST_WHY_SIZE - (size_t)n, fmt, ap);
    va_end(ap);
}

#define refuse(p, ...) refuse_at(p, (p)->lines.number, __VA_ARGS__)

/* What was found, for a sentence: with `...` when it is cut. */
static const char *shown(struct bytes found, struct buf *room)
{
    struct bytes start = {found.data, MIN(found.size, (size_t)SHOWN_SIZE)};

    buf_clear(room);
    text_put_visible(room, start);
    if (found.size > start.size)
        buf_append_str(room, "...");
    return buf_str(room);
}

/* What was found where a name should be, in quotes; but not what no name is as long as, or binary: it
 * may be of a private key, when that was taken for a trust file. */
static const char *shown_name(struct bytes found, struct buf *room)
{
    buf_clear(room);
    if (found.size > NAME_SHOWN_SIZE)
        return "This";
    for (size_t i = 0; i < found.size; i++)
        if (found.data[i] < 0x20 || found.data[i] > 0x7e)
            return "This";
    buf_append_u8(room, '"');
    text_put_visible(room, found);
    buf_append_u8(room, '"');
    return buf_str(room);
}

static bool section_is_whole(struct parser *p)
{
    if (p->key && !p->has_key)
        refuse_at(p, p->key->line, "This section has no key; it needs `key = BASE64`.");
    else if (p->key && p->key->n_allow == 0)
        refuse_at(p, p->key->line,
                  "This section allows nothing; it needs `allow = PATTERN` at least once.");
    return p->result == 0;
}

bool trust_kid_parse(struct bytes hex, uint8_t kid[COSE_KEY_KID_MAX], uint8_t *ret_size)
{
    if (hex.size == 0 || hex.size / 2 > COSE_KEY_KID_MAX ||
        text_from_hex((const char *)hex.data, hex.size, kid) < 0)
        return false;
    *ret_size = (uint8_t)(hex.size / 2);
    return true;
}

/* [KID]: the key gets it at once, and must turn out to have it. */
static void on_section(struct parser *p, struct bytes name, struct buf *room)
{
    struct trust_key *key = &p->trust->keys[p->trust->n_keys];

    if (!section_is_whole(p))
        return;
    if (p->trust->n_keys == TRUST_KEYS_MAX) {
        refuse(p, "There are more than %zu keys, which are the most.", TRUST_KEYS_MAX);
        return;
    }
    *key = (struct trust_key){
        .line = p->lines.number,
        .allow = p->trust->filters + p->trust->n_filters,
    };
    if (!trust_kid_parse(name, key->key.kid, &key->key.kid_size)) {
        refuse(p, "[%s] is not a key's id: 1 to %d bytes in hex.", shown(name, room),
               COSE_KEY_KID_MAX);
        return;
    }
    p->key = key;
    p->trust->n_keys++;
    p->has_key = p->has_delay = false;
}

/* Somebody may have put a private key there: none of its bytes stay, whatever is wrong with it. */
static bool decode_key(struct parser *p, struct bytes value, struct cose_key *ret)
{
    uint8_t decoded[KEY_BYTES_MAX];
    enum cose_key_fault fault = COSE_KEY_OK;
    size_t size = 0;
    const char *end = NULL;
    bool good = sodium_base642bin(decoded, sizeof decoded, (const char *)value.data, value.size, NULL, &size, &end,
                                  sodium_base64_VARIANT_ORIGINAL) == 0 &&
                end == (const char *)value.data + value.size;

    if (!good) {
        refuse(p, "The key is not base64 (A-Z, a-z, 0-9, +, /, padded with =).");
    } else if ((fault = cose_key_decode_public((struct bytes){decoded, size}, ret)) != COSE_KEY_OK) {
        refuse(p, "The key is no public COSE_Key of Ed25519: %s", cose_key_fault_text(fault));
        good = false;
    }
    sodium_memzero(decoded, sizeof decoded);
    return good;
}

static void on_key(struct parser *p, struct bytes value)
{
    struct cose_key key;

    if (p->has_key) {
        refuse(p, "The section has a key already; each has its own section.");
        return;
    }
    if (!decode_key(p, value, &key))
        return;
    if (!bytes_equal(cose_key_kid(&key), cose_key_kid(&p->key->key))) {
        char hex[2 * COSE_KEY_KID_MAX + 1];
        struct bytes kid = cose_key_kid(&key);

        refuse_at(p, p->lines.number,
                  "The key's id is %.128s%s, which is not that of its section.",
                  text_hex(kid.data, kid.size, hex), kid.size > 64 ? "..." : "");
        return;
    }
    p->key->key = key;
    p->has_key = true;
}

static void on_allow(struct parser *p, struct bytes value, struct buf *room)
{
    const char *fault = trust_pattern_fault(value);

    if (fault)
        refuse(p, "The pattern \"%s\" %s.", shown(value, room), fault);
    else if (p->key->n_allow == TRUST_PATTERNS_MAX)
        refuse(p, "The key has more than %zu patterns, which are the most.", TRUST_PATTERNS_MAX);
    else {
        p->trust->filters[p->trust->n_filters++] = (struct filter){FILTER_PATTERN, value};
        p->key->n_allow++;
    }
}

static void on_audience(struct parser *p, struct bytes value, struct buf *room)
{
    const char *fault = trust_audience_fault(value);

    if (p->key->has_audience)
        refuse(p, "The section has an audience already.");
    else if (fault)
        refuse(p, "The audience \"%s\" %s.", shown(value, room), fault);
    p->key->has_audience = true;
    p->key->audience = value;
}

static void on_max_delay(struct parser *p, struct bytes value, struct buf *room)
{
    uint64_t us = 0;
    /* Behind the value stands what trust_lines_next() has put there: a NUL. */
    int r = text_parse_duration((const char *)value.data, "s", &us);

    if (p->has_delay)
        refuse(p, "The section has a max-delay already.");
    else if (r == -EINVAL)
        refuse(p, "max-delay is \"%s\", but must be a time as 10min (us, ms, s, min, h, d).",
               shown(value, room));
    else if (r < 0 || us == 0 || us > (uint64_t)TRUST_DELAY_MAX_US)
        refuse(p, "max-delay is \"%s\", but must be from 1us to %" PRId64 "d; without the line "
                  "there is none.",
               shown(value, room), TRUST_DELAY_MAX_US / 86400 / 1000000);
    p->has_delay = true;
    p->key->max_delay_us = (int64_t)us;
}

static void on_entry(struct parser *p, struct bytes name, struct bytes value, struct buf *room)
{
    if (!p->key)
        refuse(p, "%s stands before any section; begin with [KID].", shown_name(name, room));
    else if (trust_comment_in(value))
        refuse(p, "A comment stands behind a value, and would become part of it; it needs a line "
                  "of its own.");
    else if (bytes_equal(name, bytes_of_text("key")))
        on_key(p, value);
    else if (bytes_equal(name, bytes_of_text("allow")))
        on_allow(p, value, room);
    else if (bytes_equal(name, bytes_of_text("audience")))
        on_audience(p, value, room);
    else if (bytes_equal(name, bytes_of_text("max-delay")))
        on_max_delay(p, value, room);
    else
        refuse(p, "%s is unknown; a section has key, allow, audience and max-delay.",
               shown_name(name, room));
}

static void on_line(struct parser *p, const struct trust_line *line, struct buf *room)
{
    switch (line->kind) {
    case TRUST_LINE_BLANK:
        break;
    case TRUST_LINE_SECTION:
        on_section(p, line->name, room);
        break;
    case TRUST_LINE_ENTRY:
        on_entry(p, line->name, line->value, room);
        break;
    case TRUST_LINE_TOO_LONG:
        refuse(p, "The line has %zu bytes; %zu are the most.", line->value.size, TRUST_LINE_MAX);
        break;
    case TRUST_LINE_NUL:
        refuse(p, "The line has a NUL byte.");
        break;
    case TRUST_LINE_OTHER:
        refuse(p, "%s is neither [KID] nor `name = value`.", shown_name(line->value, room));
        break;
    }
}

/* ---- the whole ---- */

static int by_kid(const void *a, const void *b)
{
    const struct trust_key *const *left = a, *const *right = b;

    return compare_kids(cose_key_kid(&(*left)->key), cose_key_kid(&(*right)->key));
}

/* Also tells of one kid in two sections: then the later of the two is named. */
static void sort(struct parser *p)
{
    struct trust *t = p->trust;

    for (size_t i = 0; i < t->n_keys; i++)
        t->by_kid[i] = &t->keys[i];
    qsort(t->by_kid, t->n_keys, sizeof *t->by_kid, by_kid);
    for (size_t i = 1; i < t->n_keys; i++) {
        const struct trust_key *a = t->by_kid[i - 1], *b = t->by_kid[i];

        if (compare_kids(cose_key_kid(&a->key), cose_key_kid(&b->key)) == 0)
            refuse_at(p, MAX(a->line, b->line), "This key has a section already, in line %zu.",
                      MIN(a->line, b->line));
    }
}

/* How many lines could be sections, and how many patterns: so nothing has to grow, and nothing
 * that borrows moves. */
static void count(struct bytes text, size_t *ret_sections, size_t *ret_entries)
{
    *ret_sections = *ret_entries = 0;
    for (size_t i = 0; i < text.size; i++) {
        *ret_sections += text.data[i] == '[';
        *ret_entries += text.data[i] == '=';
    }
    *ret_sections = MIN(*ret_sections, TRUST_KEYS_MAX);
}

static struct trust *trust_new(struct bytes text)
{
    struct trust *t = calloc(1, sizeof *t);
    size_t sections, entries;

    if (!t)
        return NULL;
    count(text, &sections, &entries);
    t->text = malloc(text.size + 1);
    t->text_size = text.size;
    t->keys = calloc(sections + 1, sizeof *t->keys); /* one more for what is refused as too many */
    t->by_kid = calloc(sections + 1, sizeof(struct trust_key *));
    t->filters = calloc(entries + 1, sizeof *t->filters);
    if (!t->text || !t->keys || !t->by_kid || !t->filters)
        return trust_free(t);
    if (text.size)
        memcpy(t->text, text.data, text.size);
    t->text[text.size] = '\0';
    return t;
}

int trust_parse(struct bytes text, struct trust **ret, struct trust_fault *ret_fault)
{
    struct parser p = {.fault = ret_fault};
    struct buf room = BUF_INIT;
    struct trust_line line;

    if (text.size > TRUST_TEXT_MAX) {
        refuse_at(&p, 0, "It has %zu bytes; %zu are the most.", text.size, TRUST_TEXT_MAX);
        return p.result;
    }
    p.trust = trust_new(text);
    if (!p.trust)
        return -ENOMEM;
    p.lines = trust_lines_init(p.trust->text, text.size);
    while (p.result == 0 && trust_lines_next(&p.lines, &line))
        on_line(&p, &line, &room);
    if (p.result == 0 && section_is_whole(&p))
        sort(&p);
    buf_deinit(&room);
    if (p.result == 0)
        *ret = p.trust;
    else
        (void)trust_free(p.trust);
    return p.result;
}
