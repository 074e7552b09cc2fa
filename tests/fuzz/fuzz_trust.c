/* SPDX-License-Identifier: PostgreSQL */
/*
 * Trust files, which an operator may have edited by hand. What was read is written anew by
 * trust_edit_add(), key by key, and has to be read as the same; taking a key away has to leave the
 * others, and nothing is valid that a patterns' own matcher does not allow.
 */
#include "codec/trust.h"

#include <errno.h>
#include <sodium.h>

#include "base/text.h"
#include "codec/trust_edit.h"
#include "fuzz.h"

static struct trust *parse(struct bytes text)
{
    struct trust_fault fault;
    struct trust *trust;

    return trust_parse(text, &trust, &fault) == 0 ? trust : NULL;
}

static void check_key(const struct trust *trust, const struct trust_key *key)
{
    FUZZ_CHECK(trust_find(trust, cose_key_kid(&key->key)) == key);
    FUZZ_CHECK(key->n_allow >= 1 && key->n_allow <= TRUST_PATTERNS_MAX);
    FUZZ_CHECK(crypto_core_ed25519_is_valid_point(key->key.x));
    FUZZ_CHECK(key->max_delay_us >= 0 && key->max_delay_us <= TRUST_DELAY_MAX_US);
    FUZZ_CHECK(!key->has_audience || !trust_audience_fault(key->audience));
    for (size_t i = 0; i < key->n_allow; i++) {
        FUZZ_CHECK(!trust_pattern_fault(key->allow[i].text));
        FUZZ_CHECK(memchr(key->allow[i].text.data, '*', key->allow[i].text.size) ||
                   memchr(key->allow[i].text.data, '>', key->allow[i].text.size) ||
                   trust_key_may_sign(key, key->allow[i].text));
    }
}

static bool same_key(const struct trust_key *a, const struct trust_key *b)
{
    if (memcmp(a->key.x, b->key.x, sizeof a->key.x) != 0 || a->key.alg != b->key.alg ||
        a->has_audience != b->has_audience || a->max_delay_us != b->max_delay_us ||
        (a->has_audience && !bytes_equal(a->audience, b->audience)))
        return false;
    for (size_t i = 0; i < a->n_allow; i++) {
        bool there = false;

        for (size_t j = 0; j < b->n_allow && !there; j++)
            there = bytes_equal(a->allow[i].text, b->allow[j].text);
        if (!there)
            return false;
    }
    return true;
}

static void add(struct buf *text, const struct trust_key *key)
{
    struct bytes patterns[TRUST_PATTERNS_MAX];
    struct buf out = BUF_INIT;
    struct trust_fault fault;
    enum trust_edit_done done;

    for (size_t i = 0; i < key->n_allow; i++)
        patterns[i] = key->allow[i].text;

    const struct trust_edit_entry entry = {
        .key = key->key,
        .patterns = patterns,
        .n_patterns = key->n_allow,
        .audience = key->has_audience ? &key->audience : NULL,
        .max_delay_us = key->max_delay_us,
    };

    FUZZ_CHECK(trust_edit_add(buf_bytes(text), &entry, &out, &done, &fault) == 0);
    FUZZ_CHECK(done == TRUST_EDIT_ADDED);
    buf_deinit(text);
    *text = out;
    /* Once more is nothing more. */
    struct buf again = BUF_INIT;
    FUZZ_CHECK(trust_edit_add(buf_bytes(text), &entry, &again, &done, &fault) == 0);
    FUZZ_CHECK(done == TRUST_EDIT_NOTHING && bytes_equal(buf_bytes(text), buf_bytes(&again)));
    buf_deinit(&again);
}

/* All keys in a text of our own. */
static void check_written(const struct trust *trust)
{
    struct buf text = BUF_INIT;

    for (size_t i = 0; i < trust_count(trust); i++)
        add(&text, trust_at(trust, i));
    struct trust *again = parse(buf_bytes(&text));

    FUZZ_CHECK(again && trust_count(again) == trust_count(trust));
    for (size_t i = 0; i < trust_count(trust); i++) {
        FUZZ_CHECK(same_key(trust_at(trust, i), trust_at(again, i)));
        FUZZ_CHECK(same_key(trust_at(again, i), trust_at(trust, i)));
    }
    (void)trust_free(again);
    buf_deinit(&text);
}

/* The text without its i-th key. */
static void check_removed(struct bytes text, const struct trust *trust, size_t i)
{
    struct buf out = BUF_INIT;
    struct trust_fault fault;
    struct bytes kid = cose_key_kid(&trust_at(trust, i)->key);

    FUZZ_CHECK(trust_edit_remove(text, kid, &out, &fault) == 0);
    struct trust *left = parse(buf_bytes(&out));

    FUZZ_CHECK(left && trust_count(left) == trust_count(trust) - 1 && !trust_find(left, kid));
    for (size_t j = 0; j < trust_count(left); j++)
        FUZZ_CHECK(same_key(trust_at(left, j), trust_at(trust, j < i ? j : j + 1)));
    FUZZ_CHECK(trust_edit_remove(buf_bytes(&out), kid, &out, &fault) == -ENOENT);
    (void)trust_free(left);
    buf_deinit(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = fuzz_copy((struct bytes){data, size});
    struct bytes text = {copy, size};
    struct trust_fault fault;
    struct trust *trust;
    int r = trust_parse(text, &trust, &fault);

    if (r < 0) {
        FUZZ_CHECK(r == -EINVAL);
        FUZZ_CHECK(text_is_utf8(bytes_of_text(fault.why)));
        FUZZ_CHECK_WHY(fault.why);
        free(copy);
        return 0;
    }
    for (size_t i = 0; i < trust_count(trust); i++) {
        check_key(trust, trust_at(trust, i));
        check_removed(text, trust, i);
    }
    check_written(trust);
    (void)trust_free(trust);
    free(copy);
    return 0;
}
