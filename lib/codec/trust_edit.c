/* SPDX-License-Identifier: PostgreSQL */
#include "codec/trust_edit.h"

#include <errno.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "codec/trust_line.h"

/* ---- the lines of a text ---- */

enum what { EMPTY, COMMENT, SECTION, KEY, ALLOW, AUDIENCE, DELAY };

struct line {
    size_t at; /* where it begins in the text */
    enum what what;
};

struct text {
    struct bytes bytes;
    struct line *all; /* and behind the last one, where the text ends */
    size_t n;
};

static bool is_empty(const struct trust_line *line)
{
    for (size_t i = 0; i < line->whole.size; i++)
        if (!memchr(" \t\r\n", line->whole.data[i], 4))
            return false;
    return true;
}

/* Of a text that trust_parse has taken. */
static enum what what_of(const struct trust_line *line)
{
    if (line->kind == TRUST_LINE_SECTION)
        return SECTION;
    if (line->kind == TRUST_LINE_BLANK)
        return is_empty(line) ? EMPTY : COMMENT;
    if (bytes_equal(line->name, bytes_of_text("allow")))
        return ALLOW;
    if (bytes_equal(line->name, bytes_of_text("audience")))
        return AUDIENCE;
    return bytes_equal(line->name, bytes_of_text("max-delay")) ? DELAY : KEY;
}

/* 0; -ENOMEM. */
static int text_init(struct text *t, struct bytes bytes)
{
    char *copy = malloc(bytes.size + 1);
    size_t lines = 1;
    struct trust_line line;

    for (size_t i = 0; i < bytes.size; i++)
        lines += bytes.data[i] == '\n';
    *t = (struct text){bytes, calloc(lines + 1, sizeof *t->all), 0};
    if (!copy || !t->all) {
        free(copy);
        free(t->all);
        return -ENOMEM;
    }
    if (bytes.size)
        memcpy(copy, bytes.data, bytes.size);

    struct trust_lines reader = trust_lines_init(copy, bytes.size);

    while (trust_lines_next(&reader, &line))
        t->all[t->n++] =
            (struct line){(size_t)(line.whole.data - (const uint8_t *)copy), what_of(&line)};
    t->all[t->n].at = bytes.size;
    if (t->n > 0)
        t->all[0].at = 0; /* with a byte order mark */
    free(copy);
    return 0;
}

static void put_lines(const struct text *t, size_t from, size_t to, struct buf *out)
{
    if (from < to) /* an empty text has no data */
        buf_append(out, t->bytes.data + t->all[from].at, t->all[to].at - t->all[from].at);
}

/*
 * The lines of a section, by their index:
 *
 *     0  # the shop's              first
 *     1  [866eefbd6718c884]        header
 *     2  key = pAEB…
 *     3  allow = orders.>          allow
 *     4  audience = production     last, audience
 *     5
 *     6  # the billing's           end: it stands right above the next section, and belongs to that
 *     7  [0011223344556677]
 */
struct section {
    size_t first, header, last, end;
    size_t allow;           /* the last one */
    size_t audience, delay; /* 0: none */
};

static struct section find_section(const struct text *t, size_t header)
{
    struct section s = {.first = header, .header = header, .last = header};
    size_t at;

    while (s.first > 0 && t->all[s.first - 1].what == COMMENT)
        s.first--;
    for (at = header + 1; at < t->n && t->all[at].what != SECTION; at++) {
        if (t->all[at].what > SECTION)
            s.last = at;
        if (t->all[at].what == ALLOW)
            s.allow = at;
        else if (t->all[at].what == AUDIENCE)
            s.audience = at;
        else if (t->all[at].what == DELAY)
            s.delay = at;
    }
    for (at = s.last + 1; at < t->n && t->all[at].what == COMMENT; at++)
        ;
    s.end = at < t->n && t->all[at].what == SECTION ? s.last + 1 : at;
    while (s.end < t->n && t->all[s.end].what == EMPTY)
        s.end++;
    return s;
}

/* ---- removing ---- */

int trust_edit_remove(struct bytes text, struct bytes kid, struct buf *out,
                      struct trust_fault *ret_fault)
{
    struct trust *trust;
    struct text t;
    int r = trust_parse(text, &trust, ret_fault);

    if (r < 0)
        return r;
    const struct trust_key *key = trust_find(trust, kid);
    size_t header = key ? key->line - 1 : 0;

    r = key ? text_init(&t, text) : -ENOENT;
    (void)trust_free(trust);
    if (r < 0)
        return r;

    struct section s = find_section(&t, header);

    put_lines(&t, 0, s.first, out);
    put_lines(&t, s.end, t.n, out);
    free(t.all);
    return out->failed ? -ENOMEM : 0;
}

/* ---- adding ---- */

static int refuse(struct trust_fault *fault, const char *fmt, ...) PRINTF_LIKE(2, 3);

static int refuse(struct trust_fault *fault, const char *fmt, ...)
{
    va_list ap;

    fault->line = 0;
    va_start(ap, fmt);
    (void)vsnprintf(fault->why, sizeof fault->why, fmt, ap);
    va_end(ap);
    return -EINVAL;
}

static void put_patterns(const struct trust_edit_entry *entry, const struct trust_key *known,
                         struct buf *out)
{
    for (size_t i = 0; i < entry->n_patterns; i++) {
        struct bytes pattern = entry->patterns[i];
        bool there = false;

        for (size_t j = 0; known && j < known->n_allow && !there; j++)
            there = bytes_equal(known->allow[j].text, pattern);
        for (size_t j = 0; j < i && !there; j++)
            there = bytes_equal(entry->patterns[j], pattern);
        if (!there)
            buf_printf(out, "allow = %.*s\n", (int)pattern.size, (const char *)pattern.data);
    }
}

static void put_audience(struct bytes audience, struct buf *out)
{
    buf_append_str(out, audience.size ? "audience = " : "audience =");
    buf_append(out, audience.data, audience.size);
    buf_append_str(out, "\n");
}

static void put_delay(int64_t us, struct buf *out)
{
    buf_append_str(out, "max-delay = ");
    text_put_duration(out, (uint64_t)us);
    buf_append_str(out, "\n");
}

/* What comes next begins a line. */
static void end_line(struct buf *out, size_t before)
{
    if (out->size > before && out->data[out->size - 1] != '\n')
        buf_append_str(out, "\n");
}

static void put_section(const struct text *t, const struct trust_edit_entry *entry,
                        const struct cose_key *key, struct buf *out)
{
    uint8_t encoded[COSE_KEY_PUBLIC_ENCODED_MAX];
    char hex[2 * COSE_KEY_KID_MAX + 1];
    char base64[sodium_base64_ENCODED_LEN(sizeof encoded, sodium_base64_VARIANT_ORIGINAL)];
    size_t before = out->size, size = cose_key_encode_public(key, encoded);

    put_lines(t, 0, t->n, out);
    end_line(out, before);
    if (t->n > 0 && t->all[t->n - 1].what != EMPTY)
        buf_append_str(out, "\n");
    buf_printf(out, "[%s]\nkey = %s\n", text_hex(key->kid, key->kid_size, hex),
               sodium_bin2base64(base64, sizeof base64, encoded, size,
                                 sodium_base64_VARIANT_ORIGINAL));
    put_patterns(entry, NULL, out);
    if (entry->audience)
        put_audience(*entry->audience, out);
    if (entry->max_delay_us)
        put_delay(entry->max_delay_us, out);
}

/* The same text, with what is new behind the section's last `allow`, and what is another in the
 * place of what it was. */
static void put_changed(const struct text *t, const struct trust_edit_entry *entry,
                        const struct trust_key *known, struct buf *out)
{
    struct section s = find_section(t, known->line - 1);
    size_t before = out->size;
    bool audience = entry->audience && !(known->has_audience &&
                                         bytes_equal(known->audience, *entry->audience));
    bool delay = entry->max_delay_us && known->max_delay_us != entry->max_delay_us;

    for (size_t i = 0; i < t->n; i++) {
        if (audience && i == s.audience && s.audience)
            put_audience(*entry->audience, out);
        else if (delay && i == s.delay && s.delay)
            put_delay(entry->max_delay_us, out);
        else
            put_lines(t, i, i + 1, out);
        if (i == s.allow) {
            end_line(out, before);
            put_patterns(entry, known, out);
            if (audience && !s.audience)
                put_audience(*entry->audience, out);
            if (delay && !s.delay)
                put_delay(entry->max_delay_us, out);
        }
    }
}

/* What is refused before it is written, since the text's own fault would name a line that is not there. */
static int check(const struct trust_edit_entry *entry, const struct cose_key *key,
                 const struct trust_key *known, struct trust_fault *fault)
{
    const char *why;

    if (known && (memcmp(known->key.x, key->x, sizeof key->x) != 0 || known->key.alg != key->alg))
        return refuse(fault, "Another key with this id stands in line %zu.", known->line);
    if (!known && entry->n_patterns == 0)
        return refuse(fault, "A new key needs a pattern that it may sign for.");
    for (size_t i = 0; i < entry->n_patterns; i++) {
        why = trust_pattern_fault(entry->patterns[i]);
        if (why)
            return refuse(fault, "Pattern %zu %s.", i + 1, why);
    }
    why = entry->audience ? trust_audience_fault(*entry->audience) : NULL;
    if (why)
        return refuse(fault, "The audience %s.", why);
    if (entry->max_delay_us < 0 || entry->max_delay_us > TRUST_DELAY_MAX_US)
        return refuse(fault, "The max-delay is longer than 36500d.");
    return 0;
}

/* Limits of the whole: what came out has to be a trust file. */
static int check_result(struct bytes text, struct trust_fault *fault)
{
    struct trust *trust;
    int r = trust_parse(text, &trust, fault);

    if (r == 0)
        (void)trust_free(trust);
    return r;
}

static int add(struct bytes text, const struct trust_edit_entry *entry, const struct cose_key *key,
               const struct trust_key *known, struct buf *out, struct trust_fault *fault)
{
    struct text t;
    size_t before = out->size;
    int r = check(entry, key, known, fault);

    if (r == 0)
        r = text_init(&t, text);
    if (r < 0)
        return r;
    if (known)
        put_changed(&t, entry, known, out);
    else
        put_section(&t, entry, key, out);
    free(t.all);
    if (out->failed)
        return -ENOMEM;
    r = check_result((struct bytes){out->data + before, out->size - before}, fault);
    if (r < 0)
        out->size = before;
    return r;
}

int trust_edit_add(struct bytes text, const struct trust_edit_entry *entry, struct buf *out,
                   enum trust_edit_done *ret_done, struct trust_fault *ret_fault)
{
    struct cose_key key = entry->key;
    size_t before = out->size;
    struct trust *trust;
    int r = trust_parse(text, &trust, ret_fault);

    if (r < 0)
        return r;
    if (key.kid_size == 0) {
        cose_key_default_kid(&key, key.kid);
        key.kid_size = COSE_KEY_KID_DEFAULT_SIZE;
    }
    const struct trust_key *known = trust_find(trust, cose_key_kid(&key));

    r = add(text, entry, &key, known, out, ret_fault);
    if (r == 0)
        *ret_done = !known ? TRUST_EDIT_ADDED
                    : bytes_equal(text, (struct bytes){out->data + before, out->size - before})
                        ? TRUST_EDIT_NOTHING
                        : TRUST_EDIT_CHANGED;
    (void)trust_free(trust);
    return r;
}
