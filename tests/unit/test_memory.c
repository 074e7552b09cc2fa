/* SPDX-License-Identifier: PostgreSQL */
/* What the subscribing calls do when an allocation fails: the first, the second, and so on, of one and the same
 * session. Nothing may be lost or come twice, and there is no other result than WALBUS_NO_MEMORY. */

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fake_router.h"
#include "trust_fixture.h"
#include "unit.h"

/* ---- allocations that fail; only those inside the calls that are tested count ---- */

static bool inside;
static size_t fail_at, allocations;

/* The linker sends calls of NAME to __wrap_NAME, and __real_NAME to NAME. */
void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *old, size_t size);

static bool fails(void)
{
    return inside && allocations++ == fail_at;
}

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    return fails() ? NULL : __real_realloc(old, size);
}

enum walbus_result
__real_walbus_subscription_open(const struct walbus_subscription_options *options,
                                struct walbus_subscription **ret);
enum walbus_result
__wrap_walbus_subscription_open(const struct walbus_subscription_options *options,
                                struct walbus_subscription **ret);
enum walbus_result __real_walbus_subscription_process(struct walbus_subscription *sub,
                                                      const struct walbus_delivery **ret);
enum walbus_result __wrap_walbus_subscription_process(struct walbus_subscription *sub,
                                                      const struct walbus_delivery **ret);
enum walbus_result __real_walbus_subscription_flush(struct walbus_subscription *sub);
enum walbus_result __wrap_walbus_subscription_flush(struct walbus_subscription *sub);
enum walbus_result __real_walbus_request(const char *socket, const char *what, const void *args,
                                         size_t args_size, int timeout_ms,
                                         struct walbus_reply **ret);
enum walbus_result __wrap_walbus_request(const char *socket, const char *what, const void *args,
                                         size_t args_size, int timeout_ms,
                                         struct walbus_reply **ret);

static unsigned no_memory; /* how often that was the result */

static enum walbus_result seen(enum walbus_result result)
{
    inside = false;
    no_memory += result == WALBUS_NO_MEMORY;
    return result;
}

/* fake_router.c takes for granted that opening works: it is tried once more here. */
enum walbus_result
__wrap_walbus_subscription_open(const struct walbus_subscription_options *options,
                                struct walbus_subscription **ret)
{
    inside = true;
    enum walbus_result result = seen(__real_walbus_subscription_open(options, ret));
    return result == WALBUS_NO_MEMORY ? __real_walbus_subscription_open(options, ret) : result;
}

enum walbus_result __wrap_walbus_subscription_process(struct walbus_subscription *sub,
                                                      const struct walbus_delivery **ret)
{
    inside = true;
    enum walbus_result result = seen(__real_walbus_subscription_process(sub, ret));
    if (result == WALBUS_NO_MEMORY) {
        ck_assert_str_eq(walbus_subscription_error(sub), walbus_result_text(WALBUS_NO_MEMORY));
        result = __real_walbus_subscription_process(sub, ret);
    }
    return result;
}

enum walbus_result __wrap_walbus_subscription_flush(struct walbus_subscription *sub)
{
    inside = true;
    enum walbus_result result = seen(__real_walbus_subscription_flush(sub));
    return result == WALBUS_NO_MEMORY ? __real_walbus_subscription_flush(sub) : result;
}

enum walbus_result __wrap_walbus_request(const char *socket, const char *what, const void *args,
                                         size_t args_size, int timeout_ms,
                                         struct walbus_reply **ret)
{
    inside = true;
    return seen(__real_walbus_request(socket, what, args, args_size, timeout_ms, ret));
}

/* ---- one session, with everything in it that needs memory ---- */

static const struct position start = {1, 100, POSITION_INDEX_END};
static const struct position none = {0, 0, 0};

static void expect_ack(struct fake_router *f, struct position want)
{
    struct control_ack ack;
    char why[CONTROL_WHY_SIZE];

    ck_assert_int_eq(control_ack_decode(fake_read(f, FRAME_ACK), &ack, why), 0);
    ck_assert_int_eq(position_compare(ack.position, want), 0);
}

static void session(void)
{
    static const uint8_t large[FRAME_CONTROL_MAX];
    struct walbus_position position = {200, 1, 0};
    const struct position gap_end = {1, 300, 0};
    struct buf b = BUF_INIT;
    struct fake_router f;

    fake_open(&f, "a.>");
    fake_greet(&f, CONTROL_START_NOW, none, start);
    fake_put_message(&b, 200, 0, unit_bytes("x"));
    fake_send(&f, &b);
    (void)fake_delivery(&f, WALBUS_DELIVERY_MESSAGE);
    ck_assert_int_eq(walbus_subscription_ack(f.sub, position, 0), WALBUS_OK);
    ck_assert_int_eq(walbus_subscription_flush(f.sub), WALBUS_OK);
    expect_ack(&f, (struct position){1, 200, 0});
    fake_put_gap(&b, (struct position){1, 200, 1}, gap_end, "a reason that needs memory");
    fake_put_message(&b, 400, 0, unit_bytes("y"));
    fake_send(&f, &b);
    const struct walbus_delivery *d = fake_delivery(&f, WALBUS_DELIVERY_GAP);
    ck_assert_str_eq(walbus_delivery_reason(d), "a reason that needs memory");
    d = fake_delivery(&f, WALBUS_DELIVERY_MESSAGE);
    fake_assert_position(walbus_delivery_position(d), (struct position){1, 400, 0});

    fake_hang_up(&f);
    fake_subscribe(&f, "7/1", CONTROL_START_POSITION, (struct position){1, 400, 0});
    fake_put_error(&b, CONTROL_ERROR_UNSUPPORTED, false);
    fake_send(&f, &b);
    (void)fake_read(&f, FRAME_SUBSCRIBE);
    fake_put_subscribed(&b, (struct position){1, 500, 0}, "7/1");
    fake_put_message(&b, 600, 0, (struct bytes){large, sizeof large});
    /* More than the socket takes: a part now, so that the buffer has to grow. */
    struct bytes rest = buf_bytes(&b);
    bool ready = false, gap = false, message = false;
    while (!message) {
        ssize_t n = send(f.connection, rest.data, MIN(rest.size, (size_t)65536),
                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0)
            rest = (struct bytes){rest.data + n, rest.size - (size_t)n};
        ck_assert_int_eq(walbus_subscription_process(f.sub, &d), WALBUS_OK);
        if (!d)
            continue;
        switch (walbus_delivery_kind(d)) {
        case WALBUS_DELIVERY_READY:
            ck_assert(!ready);
            ready = true;
            break;
        case WALBUS_DELIVERY_GAP:
            ck_assert(ready && !gap);
            gap = true;
            break;
        default:
            ck_assert_int_eq(walbus_delivery_kind(d), WALBUS_DELIVERY_MESSAGE);
            ck_assert(gap);
            message = true;
        }
    }
    buf_deinit(&b);
    fake_put_progress(&b, (struct position){1, 150, 0}); /* a breach, which it tells the router */
    fake_send(&f, &b);
    fake_end(&f, WALBUS_PROTOCOL, "");
    fake_close(&f);
}

START_TEST(a_subscription_without_memory)
{
    fail_at = SIZE_MAX;
    session();
    size_t all = allocations;
    ck_assert_uint_gt(all, 10);
    ck_assert_uint_eq(no_memory, 0);
    for (fail_at = 0; fail_at < all; fail_at++) {
        allocations = 0;
        session();
    }
    /* The one that only tells the router of a breach is done without. */
    ck_assert_uint_ge(no_memory, all - 4);
}
END_TEST

/* Whatever fails: what is valid comes, once, and nothing else does. */
static void verifying_session(const char *trust, struct bytes valid, struct bytes forged)
{
    struct walbus_subscription_options options = WALBUS_SUBSCRIPTION_OPTIONS_INIT;
    struct buf b = BUF_INIT;
    struct fake_router f;

    options.trust = trust;
    options.flags = WALBUS_VALID_ONLY;
    fake_open_with(&f, options);
    fake_greet(&f, CONTROL_START_NOW, none, start);
    fake_put_message(&b, 200, 0, forged);
    fake_put_message(&b, 300, 0, valid);
    fake_put_message(&b, 400, 0, unit_bytes("plain"));
    fake_send(&f, &b);
    (void)fake_delivery(&f, WALBUS_DELIVERY_PROGRESS);
    const struct walbus_delivery *d = fake_delivery(&f, WALBUS_DELIVERY_MESSAGE);
    fake_assert_position(walbus_delivery_position(d), (struct position){1, 300, 0});
    ck_assert_int_eq(walbus_delivery_signature(d), WALBUS_SIGNATURE_VALID);
    (void)fake_delivery(&f, WALBUS_DELIVERY_PROGRESS);
    ck_assert_uint_eq(walbus_subscription_withheld(f.sub), 2);
    fake_close(&f);
}

START_TEST(verifying_without_memory)
{
    struct pair pair = nth_pair(1), forger = nth_pair(2);
    struct buf text = BUF_INIT;

    memcpy(forger.key.kid, pair.key.kid, pair.key.kid_size);
    put_trust_section(&text, &pair.key);
    buf_append_str(&text, "allow = >\n");
    struct bytes valid = sign_event(&pair, "a.b", "", NULL), forged = sign_event(&forger, "a.b", "", NULL);
    char *trust = unit_temp_file(buf_bytes(&text));

    fail_at = SIZE_MAX;
    allocations = no_memory = 0;
    verifying_session(trust, valid, forged);
    size_t all = allocations;
    ck_assert_uint_gt(all, 15);
    for (fail_at = 0; fail_at < all; fail_at++) {
        allocations = 0;
        verifying_session(trust, valid, forged);
    }
    ck_assert_uint_ge(no_memory, 15);
    (void)unlink(trust);
    free(trust);
    unit_free(valid);
    unit_free(forged);
    buf_deinit(&text);
}
END_TEST

START_TEST(a_request_without_memory)
{
    for (fail_at = 0;; fail_at++) {
        struct walbus_reply *reply = NULL;

        allocations = 0;
        enum walbus_result result = walbus_request("/nonexistent", "x", "\x01", 1, 0, &reply);
        if (result != WALBUS_NO_MEMORY) {
            ck_assert_int_eq(result, WALBUS_NO_ROUTER);
            walbus_reply_free(reply);
            break;
        }
        ck_assert_ptr_null(reply);
    }
    ck_assert_uint_ge(fail_at, 2);
}
END_TEST

UNIT_MAIN("memory", a_subscription_without_memory, verifying_without_memory, a_request_without_memory)
