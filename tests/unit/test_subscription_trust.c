/* SPDX-License-Identifier: PostgreSQL */
#include "walbus/subscribe.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "client/subscription.h"
#include "fake_router.h"
#include "trust_fixture.h"
#include "unit.h"

/* The prefix of fake_put_message(). */
#define PREFIX "a.b"

static const struct position start = {1, 100, POSITION_INDEX_END};
static const struct position none = {0, 0, 0};

/* A trust file of the n-th key with these lines. */
static void put_trust(const char *path, unsigned n, const char *lines)
{
    struct pair pair = nth_pair(n);
    struct buf text = BUF_INIT;
    FILE *file = fopen(path, "we");

    ck_assert_ptr_nonnull(file);
    put_trust_section(&text, &pair.key);
    buf_append_str(&text, lines);
    ck_assert_uint_eq(fwrite(text.data, 1, text.size, file), text.size);
    ck_assert_int_eq(fclose(file), 0);
    buf_deinit(&text);
}

static char *trust_file(unsigned n, const char *lines)
{
    char *path = unit_temp_file(unit_bytes(""));

    put_trust(path, n, lines);
    return path;
}

static void drop(char *path)
{
    (void)unlink(path);
    free(path);
}

/* A subscription that is READY. */
static void greet(struct fake_router *f, const char *trust, const char *audience, unsigned flags)
{
    struct walbus_subscription_options options = WALBUS_SUBSCRIPTION_OPTIONS_INIT;

    options.trust = trust;
    options.audience = audience;
    options.flags = flags;
    fake_open_with(f, options);
    fake_greet(f, CONTROL_START_NOW, none, start);
}

/* So that the next message looks at the file again. */
static void look_again(struct fake_router *f)
{
    f->sub->trust.watched.next_ns = 0;
    f->sub->trust.watched.quiet_ns = 0; /* what was written is whole */
}

static void put_signed(struct buf *b, uint64_t lsn, uint32_t index, unsigned key, const char *prefix,
                       const char *audience)
{
    struct pair pair = nth_pair(key);
    struct bytes content = sign_event(&pair, prefix, audience, NULL);

    fake_put_message(b, lsn, index, content);
    unit_free(content);
}

static void expect(struct fake_router *f, enum walbus_signature signature)
{
    const struct walbus_delivery *d = fake_delivery(f, WALBUS_DELIVERY_MESSAGE);

    ck_assert_msg(walbus_delivery_signature(d) == signature, "%s",
                  walbus_delivery_signature_reason(d));
}

START_TEST(every_message_is_verified)
{
    char *path = trust_file(1, "allow = >\n");
    struct buf b = BUF_INIT;
    struct fake_router f;

    greet(&f, path, "production", 0);
    put_signed(&b, 200, 0, 1, PREFIX, "production");
    put_signed(&b, 300, 0, 1, PREFIX, "");
    put_signed(&b, 400, 0, 1, "b.a", "production");
    put_signed(&b, 500, 0, 2, PREFIX, "production");
    fake_put_message(&b, 600, 0, unit_bytes("plain"));
    fake_put_message(&b, 700, 0, unit_bytes("\xd2\x84"));
    fake_send(&f, &b);
    expect(&f, WALBUS_SIGNATURE_VALID);
    expect(&f, WALBUS_SIGNATURE_BAD_SIGNATURE);
    expect(&f, WALBUS_SIGNATURE_BAD_SIGNATURE);
    expect(&f, WALBUS_SIGNATURE_UNKNOWN_KEY);
    expect(&f, WALBUS_SIGNATURE_UNSIGNED);
    expect(&f, WALBUS_SIGNATURE_MALFORMED);
    ck_assert_uint_eq(walbus_subscription_withheld(f.sub), 0);
    fake_close(&f);
    drop(path);
}
END_TEST

START_TEST(without_a_trust_file_nothing_is_known)
{
    struct buf b = BUF_INIT;
    struct fake_router f;

    greet(&f, NULL, NULL, 0);
    put_signed(&b, 200, 0, 1, PREFIX, "");
    fake_send(&f, &b);
    expect(&f, WALBUS_SIGNATURE_UNKNOWN_KEY);
    fake_close(&f);
}
END_TEST

/* received_time of fake_put_message() is in 1970. */
START_TEST(what_is_not_in_time)
{
    char *path = trust_file(1, "allow = >\nmax-delay = 1d\n");
    struct pair pair = nth_pair(1);
    struct bytes now = sign_event(&pair, PREFIX, "", "2026-11-30T12:00:00Z"),
                 then = sign_event(&pair, PREFIX, "", "1970-01-01T00:00:00Z");
    struct buf b = BUF_INIT;
    struct fake_router f;

    greet(&f, path, NULL, 0);
    fake_put_message(&b, 200, 0, now);
    fake_put_message(&b, 300, 0, then);
    fake_send(&f, &b);
    expect(&f, WALBUS_SIGNATURE_STALE);
    expect(&f, WALBUS_SIGNATURE_VALID);
    fake_close(&f);
    unit_free(now);
    unit_free(then);
    drop(path);
}
END_TEST

/* The one number that verify_content() takes for none. */
START_TEST(no_received_time_leaves_out_max_delay)
{
    struct pair pair = nth_pair(1);
    struct trust *trust = trust_of(&pair.key, "allow = >\nmax-delay = 1d\n");
    struct bytes content = sign_event(&pair, PREFIX, "", "2026-11-30T12:00:00Z");
    struct frame_message f = {.prefix = unit_bytes(PREFIX), .content = content};
    static struct walbus_delivery d;
    struct buf scratch = BUF_INIT;

    for (unsigned more = 0; more < 2; more++) {
        f.received_time = INT64_MIN + more;
        ck_assert_int_eq(delivery_verify(&d, &f, trust, unit_bytes(""), &scratch), 0);
        ck_assert_int_eq(d.verified.status, VERIFY_STALE);
    }
    buf_deinit(&scratch);
    unit_free(content);
    (void)trust_free(trust);
}
END_TEST

/* Verifying copies the content, and the longest has hundreds of megabytes. */
START_TEST(no_more_memory_than_for_receiving_is_kept)
{
    char *path = trust_file(1, "allow = >\n");
    struct pair pair = nth_pair(1);
    const size_t size = 1 << 20;
    struct bytes payload = {calloc(1, size), size}, content;
    const struct signed_event_scope scope = {unit_bytes(PREFIX), {NULL, 0}};
    struct buf room = BUF_INIT;
    struct fake_router f;

    greet(&f, path, NULL, 0);
    ck_assert_int_eq(
        signed_event_sign(payload, &scope, &pair.key, pair.secret, &room, &content), 0);
    const struct frame_message m = {.prefix = scope.prefix, .content = content};
    ck_assert_int_eq(subscription_verify(f.sub, &m), 0);
    ck_assert_ptr_nonnull(strstr(f.sub->delivery.verified.reason, "The payload is signed, but"));
    ck_assert_uint_le(f.sub->scratch.cap, (size_t)256 * 1024);
    fake_close(&f);
    buf_deinit(&room);
    unit_free(payload);
    drop(path);
}
END_TEST

/* ---- WALBUS_VALID_ONLY ---- */

static void is_at(const struct walbus_delivery *d, struct position p)
{
    fake_assert_position(walbus_delivery_position(d), p);
}

START_TEST(only_what_is_valid)
{
    char *path = trust_file(1, "allow = >\n");
    struct buf b = BUF_INIT;
    struct fake_router f;

    greet(&f, path, NULL, WALBUS_VALID_ONLY);
    fake_put_begin(&b, 200);
    fake_put_message(&b, 200, 1, unit_bytes("plain"));
    put_signed(&b, 200, 2, 1, PREFIX, "");
    put_signed(&b, 200, 3, 2, PREFIX, "");
    fake_put_commit(&b, 200);
    fake_put_message(&b, 300, 0, unit_bytes("plain"));
    put_signed(&b, 400, 0, 1, PREFIX, "");
    fake_send(&f, &b);

    (void)fake_delivery(&f, WALBUS_DELIVERY_BEGIN);
    const struct walbus_delivery *d = fake_delivery(&f, WALBUS_DELIVERY_MESSAGE);
    is_at(d, (struct position){1, 200, 2});
    ck_assert_int_eq(walbus_delivery_signature(d), WALBUS_SIGNATURE_VALID);
    d = fake_delivery(&f, WALBUS_DELIVERY_COMMIT);
    is_at(d, (struct position){1, 200, POSITION_INDEX_END});
    ck_assert_uint_eq(walbus_subscription_withheld(f.sub), 2);
    /* In the place of what is withheld outside of a transaction: it is to be acknowledged. */
    d = fake_delivery(&f, WALBUS_DELIVERY_PROGRESS);
    is_at(d, (struct position){1, 300, 0});
    ck_assert_int_eq(walbus_delivery_signature(d), WALBUS_SIGNATURE_UNSIGNED);
    ck_assert_ptr_null(walbus_delivery_content(d, NULL));
    ck_assert_int_eq(walbus_subscription_ack(f.sub, walbus_delivery_position(d), 0), WALBUS_OK);
    d = fake_delivery(&f, WALBUS_DELIVERY_MESSAGE);
    is_at(d, (struct position){1, 400, 0});
    ck_assert_uint_eq(walbus_subscription_withheld(f.sub), 3);

    struct control_ack ack;
    char why[CONTROL_WHY_SIZE];
    ck_assert_int_eq(control_ack_decode(fake_read(&f, FRAME_ACK), &ack, why), 0);
    ck_assert_int_eq(position_compare(ack.position, (struct position){1, 300, 0}), 0);
    fake_no_delivery(&f);
    fake_close(&f);
    drop(path);
}
END_TEST

/* It goes on behind what it has passed over. */
START_TEST(what_was_withheld_is_behind_it)
{
    char *path = trust_file(1, "allow = >\n");
    const struct position last = {1, 200, 1};
    struct buf b = BUF_INIT;
    struct fake_router f;

    greet(&f, path, NULL, WALBUS_VALID_ONLY);
    fake_put_begin(&b, 200);
    fake_put_message(&b, 200, 1, unit_bytes("plain"));
    fake_send(&f, &b);
    (void)fake_delivery(&f, WALBUS_DELIVERY_BEGIN);
    fake_no_delivery(&f);
    fake_assert_position(walbus_subscription_position(f.sub), last);
    fake_hang_up(&f);
    fake_greet(&f, CONTROL_START_POSITION, last, last);
    fake_close(&f);
    drop(path);
}
END_TEST

/* Each may have cost a verification, and the caller's loop has other things to do. */
START_TEST(many_are_passed_over_in_several_steps)
{
    char *path = trust_file(1, "allow = >\n");
    struct buf b = BUF_INIT;
    const struct walbus_delivery *d;
    struct fake_router f;

    greet(&f, path, NULL, WALBUS_VALID_ONLY);
    fake_put_begin(&b, 200);
    for (uint32_t i = 1; i <= 1000; i++)
        fake_put_message(&b, 200, i, unit_bytes("plain"));
    fake_put_commit(&b, 200);
    fake_send(&f, &b);
    (void)fake_delivery(&f, WALBUS_DELIVERY_BEGIN);
    for (unsigned step = 1; step <= 15; step++) {
        ck_assert_int_eq(walbus_subscription_process(f.sub, &d), WALBUS_OK);
        ck_assert_ptr_null(d);
        ck_assert_uint_eq(walbus_subscription_withheld(f.sub), 64 * step);
        ck_assert_int_eq(walbus_subscription_timeout(f.sub), 0); /* there is more */
    }
    ck_assert_int_eq(walbus_subscription_process(f.sub, &d), WALBUS_OK);
    ck_assert_int_eq(walbus_delivery_kind(d), WALBUS_DELIVERY_COMMIT);
    ck_assert_uint_eq(walbus_subscription_withheld(f.sub), 1000);
    fake_no_delivery(&f);
    ck_assert_int_eq(walbus_subscription_timeout(f.sub), -1);
    fake_close(&f);
    drop(path);
}
END_TEST

/* A durable name that keeps its position, connected again, which asks to go on behind `asked`. */
static void greet_keeping(struct fake_router *f, struct position asked, bool override)
{
    struct buf b = BUF_INIT;

    fake_take_subscribe(f, "7/1",
                        &(struct control_subscribe){.name = unit_bytes("n"),
                                                    .start = CONTROL_START_POSITION,
                                                    .position = asked,
                                                    .override = override});
    fake_put_subscribed_durable(&b, asked, "7/1", false, none);
    fake_send(f, &b);
    (void)fake_delivery(f, WALBUS_DELIVERY_READY);
}

/* The router keeps it as it does one that was delivered, until its PROGRESS is acknowledged. */
START_TEST(what_is_withheld_and_not_acknowledged_stays_the_routers)
{
    const struct position before = {1, 199, POSITION_INDEX_END}, place = {1, 200, 0};
    struct walbus_subscription_options options = WALBUS_SUBSCRIPTION_OPTIONS_INIT;
    char *path = trust_file(1, "allow = >\n");
    struct buf b = BUF_INIT;
    struct fake_router f;

    options.name = "n";
    options.trust = path;
    options.flags = WALBUS_VALID_ONLY | WALBUS_KEEPS_POSITION;
    options.start = WALBUS_START_POSITION;
    options.position = (struct walbus_position){start.lsn, start.timeline, start.index};
    fake_open_with(&f, options);
    greet_keeping(&f, start, false);
    fake_put_message(&b, 200, 0, unit_bytes("plain"));
    fake_send(&f, &b);
    is_at(fake_delivery(&f, WALBUS_DELIVERY_PROGRESS), place);
    fake_hang_up(&f);
    greet_keeping(&f, before, true);
    fake_put_message(&b, 200, 0, unit_bytes("plain")); /* comes again, and was passed over */
    fake_send(&f, &b);
    fake_no_delivery(&f);
    ck_assert_uint_eq(walbus_subscription_withheld(f.sub), 1);
    ck_assert_int_eq(walbus_subscription_ack(f.sub, (struct walbus_position){200, 1, 0}, 0), WALBUS_OK);
    fake_hang_up(&f);
    greet_keeping(&f, place, true);
    fake_close(&f);
    drop(path);
}
END_TEST

/* ---- the file changes ---- */

START_TEST(keys_come_and_go)
{
    char *path = trust_file(1, "allow = >\n");
    struct buf b = BUF_INIT;
    struct fake_router f;

    greet(&f, path, NULL, 0);
    put_signed(&b, 200, 0, 2, PREFIX, "");
    fake_send(&f, &b);
    expect(&f, WALBUS_SIGNATURE_UNKNOWN_KEY);
    unsigned logged = f.logged;

    put_trust(path, 2, "allow = >\nallow = x\n");
    look_again(&f);
    put_signed(&b, 300, 0, 2, PREFIX, "");
    put_signed(&b, 400, 0, 1, PREFIX, "");
    fake_send(&f, &b);
    expect(&f, WALBUS_SIGNATURE_VALID);
    expect(&f, WALBUS_SIGNATURE_UNKNOWN_KEY);
    ck_assert_uint_eq(f.logged, logged + 1);
    ck_assert_ptr_nonnull(strstr(f.sentence, "The trust file was read anew: "));
    fake_close(&f);
    drop(path);
}
END_TEST

START_TEST(a_broken_file_changes_nothing_and_is_told_once)
{
    char *path = trust_file(1, "allow = >\n");
    struct buf b = BUF_INIT;
    struct fake_router f;

    greet(&f, path, NULL, 0);
    unsigned logged = f.logged;
    put_trust(path, 1, "what\n");
    for (uint64_t lsn = 200; lsn < 500; lsn += 100) {
        look_again(&f);
        put_signed(&b, lsn, 0, 1, PREFIX, "");
        fake_send(&f, &b);
        expect(&f, WALBUS_SIGNATURE_VALID);
        ck_assert_uint_eq(f.logged, logged + 1);
    }
    ck_assert_ptr_nonnull(strstr(f.sentence, "so what was read before stays: /"));
    ck_assert_ptr_nonnull(strstr(f.sentence, ": line 3: \"what\" is neither"));
    ck_assert_int_eq(unlink(path), 0);
    look_again(&f);
    put_signed(&b, 500, 0, 1, PREFIX, "");
    fake_send(&f, &b);
    expect(&f, WALBUS_SIGNATURE_VALID);
    ck_assert_uint_eq(f.logged, logged + 2);
    ck_assert_ptr_nonnull(strstr(f.sentence, "No such file or directory"));
    fake_close(&f);
    free(path);
}
END_TEST

/* With a path and a pattern of which as much is shown as ever. */
START_TEST(a_long_complaint_is_told_to_its_end)
{
    char *folder = unit_temp_folder(), *path, lines[128] = "allow = ", name[201];
    struct buf b = BUF_INIT;
    struct fake_router f;

    memset(lines + strlen(lines), 0xff, 100);
    memset(name, 'a', sizeof name);
    name[sizeof name - 1] = '\0';
    ck_assert_int_ge(asprintf(&path, "%s/%s", folder, name), 0);
    put_trust(path, 1, "allow = >\n");
    greet(&f, path, NULL, 0);
    put_trust(path, 1, lines);
    look_again(&f);
    fake_put_message(&b, 200, 0, unit_bytes("plain"));
    fake_send(&f, &b);
    expect(&f, WALBUS_SIGNATURE_UNSIGNED);
    ck_assert_ptr_nonnull(strstr(f.sentence, "no signature for such a prefix is valid."));
    fake_close(&f);
    free(path);
    unit_temp_folder_remove(folder);
}
END_TEST

START_TEST(a_relative_path_is_that_of_the_opening)
{
    char *folder = unit_temp_folder(), *path;
    int here = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct buf b = BUF_INIT;
    struct fake_router f;

    ck_assert_int_ge(here, 0);
    ck_assert_int_ge(asprintf(&path, "%s/trust", folder), 0);
    put_trust(path, 1, "allow = >\n");
    ck_assert_int_eq(chdir(folder), 0);
    greet(&f, "trust", NULL, 0);
    ck_assert_int_eq(fchdir(here), 0);
    put_trust(path, 2, "allow = >\n");
    look_again(&f);
    put_signed(&b, 200, 0, 2, PREFIX, "");
    fake_send(&f, &b);
    expect(&f, WALBUS_SIGNATURE_VALID);
    fake_close(&f);
    (void)fd_close(here);
    free(path);
    unit_temp_folder_remove(folder);
}
END_TEST

/* ---- refused at the beginning ---- */

static void keep(void *context, const char *sentence)
{
    (void)snprintf(context, 1024, "%s", sentence);
}

static enum walbus_result result_of(const char *trust, const char *audience, unsigned flags,
                                    char said[1024])
{
    struct walbus_subscription_options options = WALBUS_SUBSCRIPTION_OPTIONS_INIT;
    struct walbus_subscription *sub;

    options.socket = "/nonexistent/walbus.sock";
    options.trust = trust;
    options.audience = audience;
    options.flags = flags;
    options.log = said ? keep : NULL;
    options.context = said;
    return walbus_subscription_open(&options, &sub);
}

START_TEST(what_cannot_be_opened)
{
    char *good = trust_file(1, "allow = >\n"), *bad = trust_file(1, "");
    char said[1024] = "", longest[WALBUS_MAX_AUDIENCE + 2];

    memset(longest, 'a', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    ck_assert_int_eq(result_of(good, NULL, WALBUS_VALID_ONLY, said), WALBUS_NO_ROUTER);
    ck_assert_int_eq(result_of(good, longest + 1, 0, said), WALBUS_NO_ROUTER);
    ck_assert_int_eq(result_of(good, longest, 0, said), WALBUS_BAD_ARGUMENT);
    ck_assert_int_eq(result_of(good, "\xff", 0, said), WALBUS_BAD_ARGUMENT);
    ck_assert_int_eq(result_of(NULL, NULL, WALBUS_VALID_ONLY, said), WALBUS_BAD_ARGUMENT);
    ck_assert_str_eq(said, "");
    ck_assert_int_eq(result_of(bad, NULL, 0, said), WALBUS_BAD_TRUST);
    ck_assert_ptr_nonnull(strstr(said, ": line 1: This section allows nothing"));
    ck_assert_int_eq(result_of("/none/at/all", NULL, 0, said), WALBUS_BAD_TRUST);
    ck_assert_str_eq(said, "/none/at/all: It cannot be opened: No such file or directory.");
    ck_assert_int_eq(result_of(bad, NULL, 0, NULL), WALBUS_BAD_TRUST);
    ck_assert_uint_eq(walbus_subscription_withheld(NULL), 0);
    drop(good);
    drop(bad);
}
END_TEST

UNIT_MAIN("subscription_trust", every_message_is_verified, without_a_trust_file_nothing_is_known,
          what_is_not_in_time, no_received_time_leaves_out_max_delay,
          no_more_memory_than_for_receiving_is_kept, only_what_is_valid,
          what_was_withheld_is_behind_it, many_are_passed_over_in_several_steps,
          what_is_withheld_and_not_acknowledged_stays_the_routers, keys_come_and_go,
          a_broken_file_changes_nothing_and_is_told_once, a_long_complaint_is_told_to_its_end,
          a_relative_path_is_that_of_the_opening,
          what_cannot_be_opened)
