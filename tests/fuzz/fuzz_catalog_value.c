/* SPDX-License-Identifier: PostgreSQL */
/*
 * What the catalog keeps. The first byte says what: 1: a value's checksum is put right first (no fuzzer finds one); 2: the
 * filters of a subscription, else a subscription. What is read is written again, which gives the same bytes.
 */
#include "catalog_value.h"

#include "fuzz.h"

#define FLAG_SEALED  1
#define FLAG_FILTERS 2

/* Those that a value may have; of others nothing is kept. */
#define KNOWN_FLAGS 0x0fu
#define FLAG_MARK   0x04u

static void check_filters(struct bytes in)
{
    struct filter all[2 * FILTERS_MAX];
    struct buf again = BUF_INIT;
    size_t n_filters, n_exclusions;

    fuzz_mark(&n_filters, sizeof n_filters);
    fuzz_mark(&n_exclusions, sizeof n_exclusions);
    if (catalog_filters_decode(in, all, &n_filters, &n_exclusions) < 0) {
        FUZZ_CHECK(fuzz_is_marked(&n_filters, sizeof n_filters) &&
                   fuzz_is_marked(&n_exclusions, sizeof n_exclusions));
        return;
    }
    FUZZ_CHECK(n_filters <= FILTERS_MAX && n_exclusions <= FILTERS_MAX);
    catalog_filters_encode(&again, all, n_filters, 0);
    catalog_filters_encode(&again, all + n_filters, n_exclusions, 1);
    FUZZ_CHECK(!again.failed && bytes_equal(buf_bytes(&again), in));
    buf_deinit(&again);
}

static void check_subscription(uint8_t *value, size_t size, bool sealed)
{
    uint8_t room[1 + CATALOG_NAME_MAX], again[CATALOG_SUBSCRIPTION_MOST];
    MDB_val key = catalog_name_key(bytes_of_text("billing"), room);
    struct catalog_filters_ref ref = {0};
    struct catalog_subscription s = {0};

    if (sealed && size >= 8)
        catalog_value_seal(key, value, size);
    if (!catalog_subscription_is_sealed(key, (MDB_val){size, value}))
        return;
    catalog_subscription_decode(value, &s, &ref);
    FUZZ_CHECK(s.mark.why.size == 0 ||
               (s.mark.why.data > value && s.mark.why.size <= (size_t)(value + size - 8 - s.mark.why.data)));
    size_t n = catalog_subscription_encode(&s, ref, again);
    FUZZ_CHECK(n <= sizeof again);
    if ((value[1] & ~KNOWN_FLAGS) || ((value[1] & FLAG_MARK) && !s.mark.since) ||
        s.mark.why.size > CATALOG_REASON_MAX)
        return; /* as this version does not write it */
    catalog_value_seal(key, again, n);
    FUZZ_CHECK(n == size && memcmp(again, value, n) == 0);
    /* One bit of it more or less, and it is not believed. */
    value[size / 2] ^= 1;
    FUZZ_CHECK(!catalog_subscription_is_sealed(key, (MDB_val){size, value}));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_in in = {data, size};
    uint8_t flags = fuzz_u8(&in);
    uint8_t *copy = fuzz_copy((struct bytes){in.at, in.left});

    if (flags & FLAG_FILTERS)
        check_filters((struct bytes){copy, in.left});
    else
        check_subscription(copy, in.left, flags & FLAG_SEALED);
    free(copy);
    return 0;
}
